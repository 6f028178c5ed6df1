"""llama.cpp by its C interface, from llama-cpp-python, without that package's own sampling.

The way "repack" lets it lay weights out anew, "plain" leaves them as the file has them.
"""

import time

BEGAN = time.perf_counter()

import ctypes  # noqa: E402  (the clock runs)

import llama_cpp as lib  # noqa: E402
import numpy as np  # noqa: E402

from gateup.bench.peers.whole import CALL, measure  # noqa: E402


class LlamaCpp:
    def __init__(self, path: str, threads: int, capacity: int, way: str) -> None:
        lib.llama_backend_init()
        # Where it reports progress there is nobody to read it.
        self.silent = lib.llama_log_callback(lambda *_: None)
        lib.llama_log_set(self.silent, ctypes.c_void_p(0))
        wanted = lib.llama_model_default_params()
        wanted.use_extra_bufts = way == "repack"
        self.model = lib.llama_model_load_from_file(path.encode(), wanted)
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = capacity, CALL, CALL
        params.n_threads = params.n_threads_batch = threads
        self.context = lib.llama_init_from_model(self.model, params)
        self.vocabulary = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))

    def clear(self) -> None:
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)

    def feed(self, ids: list[int]) -> int:
        array = (lib.llama_token * len(ids))(*ids)
        if lib.llama_decode(self.context, lib.llama_batch_get_one(array, len(ids))):
            raise SystemExit("llama_decode failed")
        logits = lib.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())

    def parts(self) -> dict[str, float]:
        return {}


if __name__ == "__main__":
    measure(LlamaCpp, BEGAN)
