"""gateup: everything about the gated feed-forward network of Llama-family models."""

__version__ = "0.1.0"
