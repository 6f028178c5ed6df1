"""gateup's own decoder; the way is how activations are taken: int8 or int16."""

import time

BEGAN = time.perf_counter()

import torch  # noqa: E402  (the clock runs)

from gateup.bench.peers.whole import measure  # noqa: E402
from gateup.engine.decoder import make_decoder  # noqa: E402
from gateup.engine.loading import load  # noqa: E402
from gateup.files.checkpoint import open_model  # noqa: E402

TERMS = {"int8": 1, "int16": 2}


class Engine:
    def __init__(self, path: str, threads: int, capacity: int, way: str) -> None:
        torch.set_num_threads(threads)
        loaded = load(open_model(path), capacity, terms=TERMS[way])
        self.decoder = make_decoder(loaded.config, loaded.weights)
        self.cache = self.decoder.new_cache(capacity)

    def clear(self) -> None:
        self.cache.truncate(0, 0)

    def feed(self, ids: list[int]) -> int:
        logits = self.decoder.forward(torch.tensor([ids]), self.cache)
        return int(logits[0].argmax())

    def parts(self) -> dict[str, float]:
        seconds = getattr(self.decoder, "seconds", dict)
        return {name: float(value) for name, value in seconds().items()}


if __name__ == "__main__":
    measure(Engine, BEGAN)
