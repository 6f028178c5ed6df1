"""Block formats and llama.cpp's choice of type per tensor."""
