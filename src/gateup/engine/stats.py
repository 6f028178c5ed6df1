"""What a run took: seconds, tokens per second, the process's peak memory."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class Stats:
    """Of one answer; times in seconds, from a monotonic clock.

    prompt_tokens  tokens of the prompt, `reused` of them already in the cache
    prefill_s      until the logits behind the prompt
    new_tokens     tokens of the answer, its end token included
    decode_s       from then until the last token
    """

    prompt_tokens: int = 0
    reused: int = 0
    prefill_s: float = 0.0
    new_tokens: int = 0
    decode_s: float = 0.0

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second; 0 where none went through."""
        fresh = self.prompt_tokens - self.reused
        return fresh / self.prefill_s if self.prefill_s > 0 else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens per second of the forward passes behind the first token (which prefill gave)."""
        return (self.new_tokens - 1) / self.decode_s if self.decode_s > 0 else 0.0


def peak_rss() -> int:
    """The most memory this process has had resident, in bytes: VmHWM, or getrusage without it."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
