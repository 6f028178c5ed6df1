"""Several sequences decoded together, each with its own length, end and random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from gateup.engine.decoder import prefill
from gateup.engine.sampling import Sampler, Sampling, StopTexts
from gateup.engine.tokenizer import TextStream

if TYPE_CHECKING:
    from gateup.engine.generate import Engine


class _Sequence:
    """One answer in the making."""

    def __init__(
        self, row: int, prompt: Sequence[int], limit: int, sampling: Sampling, text: TextStream
    ) -> None:
        self.row = row
        self.seen = list(prompt)
        self.left = limit
        self.sampler = Sampler(sampling)
        self.stops = StopTexts(sampling.stop)
        self.text = text
        self.out = ""
        self.open = True

    def take(self, logits: torch.Tensor, ends: frozenset[int]) -> None:
        """Choose the next token and close the answer where it ends."""
        token = self.sampler(logits, self.seen)
        self.seen.append(token)
        self.left -= 1
        stopped = False
        if token not in ends:
            new, stopped = self.stops.push(self.text.push(token))
            self.out += new
        if stopped or token in ends or self.left == 0:
            self.open = False
            if not stopped:
                new, stopped = self.stops.push(self.text.finish())
                self.out += new + self.stops.finish()


def decode_batch(
    engine: Engine, prompts: Sequence[list[int]], limits: Sequence[int], sampling: Sampling
) -> list[str]:
    """The answers to `prompts` of token numbers, at most `limits` tokens each."""
    decoder, ends = engine.decoder, engine.tokenizer.stop_ids
    capacity = max(len(p) + n for p, n in zip(prompts, limits, strict=True))
    cache = decoder.new_cache(capacity, len(prompts), engine.cache_dtype)
    all_of = [
        _Sequence(i, p, n, sampling, engine.tokenizer.stream())
        for i, (p, n) in enumerate(zip(prompts, limits, strict=True))
    ]
    for s, prompt in zip(all_of, prompts, strict=True):
        logits = prefill(decoder, prompt, cache, s.row)
        engine.check(logits, cache)
        s.take(logits, ends)
    while running := [s for s in all_of if s.open]:
        ids = torch.tensor([[s.seen[-1]] for s in running])
        logits = decoder.forward(ids, cache, [s.row for s in running])
        engine.check(logits, cache)
        for s, row in zip(running, logits, strict=True):
            s.take(row, ends)
    return [s.out for s in all_of]
