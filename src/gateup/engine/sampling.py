"""From logits to the next token: greedy, or drawn after the usual cuts.

The cuts and their order are transformers': repeat penalty, temperature, top_k, top_p, min_p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from gateup.errors import UsageError

# Candidates sorted at first; a nucleus is rarely larger, and sorting 150,000 logits takes 10 ms.
_FIRST = 1024


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen.

    temperature     0: always the likeliest token (greedy); logits are divided by it otherwise
    top_k           only the k likeliest; 0: all
    top_p           only the fewest whose probabilities sum to p or more
    min_p           only those at least so many times as likely as the likeliest
    repeat_penalty  logits of tokens that have occurred are divided by it where positive, and
                    multiplied where negative; 1: nothing
    seed            of the random numbers; None: another each time
    stop            texts that end the answer; they are not part of it
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        """Raises UsageError for values out of range."""
        for name in ("temperature", "top_p", "min_p", "repeat_penalty"):
            _typed(name, getattr(self, name), (int, float), "a number")
        for name in ("top_k", "seed"):
            value = getattr(self, name)
            if name != "seed" or value is not None:
                _typed(name, value, (int,), "a whole number")
        if not isinstance(self.stop, tuple) or not all(isinstance(s, str) for s in self.stop):
            raise UsageError(f"stop is {self.stop!r}", expected="texts")
        for name, good, expected in (
            ("temperature", 0 <= self.temperature < math.inf, "0 or more"),
            ("top_k", self.top_k >= 0, "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0, at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "from 0 to 1"),
            ("repeat_penalty", 0 < self.repeat_penalty < math.inf, "above 0"),
            ("seed", self.seed is None or 0 <= self.seed < 1 << 63, "from 0 to 2^63 - 1"),
        ):
            if not good:
                raise UsageError(f"{name} is {getattr(self, name)}", expected=expected)
        if not all(self.stop):
            raise UsageError("a stop text is empty", expected="one character or more")


def _typed(name: str, value: object, types: tuple[type, ...], expected: str) -> None:
    if not isinstance(value, types) or isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}", expected=expected)


class Sampler:
    """Chooses tokens of one sequence."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.random = torch.Generator()
        if sampling.seed is None:
            self.random.seed()
        else:
            self.random.manual_seed(sampling.seed)

    def __call__(self, logits: torch.Tensor, seen: Sequence[int] = ()) -> int:
        """The next token from float logits [V]; `seen` tokens are those a penalty counts."""
        s = self.sampling
        if s.repeat_penalty != 1.0 and seen:
            logits = penalised(logits, seen, s.repeat_penalty)
        if s.temperature == 0.0:
            return int(logits.argmax())
        shares, tokens = candidates(logits, s)
        drawn = int(torch.multinomial(shares, 1, generator=self.random))
        return int(tokens[drawn])


def penalised(logits: torch.Tensor, seen: Sequence[int], penalty: float) -> torch.Tensor:
    """Float64 logits [V] with those of `seen` tokens lowered."""
    index = torch.tensor(sorted(set(seen)))
    logits = logits.double()
    found = logits[index]
    lowered = torch.where(found < 0, found * penalty, found / penalty)
    # Finite whatever the penalty: differences of infinities are no numbers.
    return logits.index_put((index,), lowered.clamp(-1e300, 1e300))


def candidates(logits: torch.Tensor, s: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """(float64 probabilities, tokens) of what is left after the cuts: one at least; they sum to 1.

    Temperatures so low that quotients leave float64 give the likeliest token alone.
    """
    # At most 0: whatever the temperature, no infinities but negative ones, whose share is 0.
    scaled = (logits.double() - logits.max()) / s.temperature
    scaled = scaled.nan_to_num(nan=0.0)  # 0 / 0, where the temperature is too low for float64
    V = scaled.numel()
    if not s.top_k and s.top_p == 1 and s.min_p == 0:
        return scaled.softmax(0), torch.arange(V)
    total = None if s.top_k else scaled.logsumexp(0)
    count = min(s.top_k or _FIRST, V)
    while True:
        values, tokens = scaled.topk(count)
        # Shares among all V, or among the k where top_k has cut the rest away.
        shares = values.softmax(0) if total is None else (values - total).exp()
        kept = torch.ones(count, dtype=torch.bool)
        if s.top_p < 1:
            kept = shares.cumsum(0) - shares < s.top_p  # a token is kept if those before fall short
        if s.min_p > 0:
            kept = kept & (shares >= s.min_p * shares[0])
        kept[0] = True  # also where rounding puts what is before it above a tiny top_p
        if s.top_k or count == V or not bool(kept[-1]):
            break
        count = V  # the cut lies further down
    shares = shares[kept]
    return shares / shares.sum(), tokens[kept]


class StopTexts:
    """Holds back text that may be the beginning of a stop text."""

    def __init__(self, stop: Sequence[str]) -> None:
        self.stop = tuple(stop)
        self.held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """(text that can go out, whether a stop text came: then it was the last)."""
        self.held += text
        found = [at for at in (self.held.find(s) for s in self.stop) if at >= 0]
        if found:
            out, self.held = self.held[: min(found)], ""
            return out, True
        keep = max((_overlap(self.held, s) for s in self.stop), default=0)
        cut = len(self.held) - keep
        out, self.held = self.held[:cut], self.held[cut:]
        return out, False

    def finish(self) -> str:
        """What was held back, when no more text comes."""
        out, self.held = self.held, ""
        return out


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of `text` that begin `stop`."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
