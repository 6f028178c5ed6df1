"""Text from a model: `load` it, then `generate`, `stream`, or read its `logits`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from gateup.account.machine import probe
from gateup.engine.bar import LoadingBar
from gateup.engine.cache import DTYPES as CACHE_TYPES
from gateup.engine.cache import KVCache, nbytes
from gateup.engine.chat import Tool
from gateup.engine.decoder import CHUNK, Decoder, make_decoder, prefill
from gateup.engine.loading import load as load_parts
from gateup.engine.prompts import Prompt, Prompts
from gateup.engine.sampling import Sampler, Sampling, StopTexts
from gateup.engine.spec_config import decoder_config, default_context, longest_context
from gateup.engine.stats import Stats
from gateup.engine.tokenizer import Tokenizer, load_tokenizer
from gateup.engine.weights import first_not_finite
from gateup.errors import InputError, UsageError
from gateup.files.checkpoint import Checkpoint, open_model
from gateup.model.config import whole
from gateup.ops import native

# Numbers of the KV cache; float16 ends at 65,504 and rounds by up to 5e-4.
CacheType = Literal["float16", "float32"]

# How the kernels take activations for quantised weights: as one int8 number, or as the sum of two.
Activations = Literal["int8", "int16"]
_TERMS: dict[str, int] = {"int8": 1, "int16": 2}
# Below this many parameters the second number is worth its multiplications: int8 moves a small
# model's logits by as much as likely tokens are apart (SmolLM2-135M: 0.2 on average, 2 at most).
_SMALL = 10**9


def load(
    model: str | Path,
    *,
    ctx: int | None = None,
    threads: int | None = None,
    activations: Activations | None = None,
    cache_type: CacheType = "float16",
    first: Callable[[Prompts], object] | None = None,
) -> Engine:
    """The model, ready to run: `gateup.load("smollm2").generate("Once upon a time")`.

    model    as for gateup.open: a folder, a GGUF, "smollm2", …
    ctx      tokens that prompt and answer may have together (default: see default_context)
    threads  of torch and of the kernels; default: torch's own choice
    activations  for quantised weights: "int8", fastest, as exact as llama.cpp; "int16", the
             logits of float32 activations to 0.03 %, for twice the multiplications.
             Default: "int16" for models of fewer than a billion parameters
    cache_type   of keys and values: "float16", half the memory and what llama.cpp takes, or
             "float32", for comparisons and for models whose values float16 cannot hold
    first    called before weights are read, with what is known then; may raise

    Raises GateupError: whatever is wrong with the files, the model's kind or the memory is said
    before weights are read.
    """
    start = time.monotonic()
    checkpoint = open_model(model)
    if threads is not None:
        if not (whole(threads) and 1 <= threads <= 1024):
            raise UsageError(f"threads is {threads!r}", expected="a whole number, 1 to 1,024")
        torch.set_num_threads(threads)
    if activations is None:
        activations = "int16" if checkpoint.spec.params < _SMALL else "int8"
    if not isinstance(activations, str) or activations not in _TERMS:
        raise UsageError(f"activations are {activations!r}", expected='"int8" or "int16"')
    if not isinstance(cache_type, str) or cache_type not in CACHE_TYPES:
        raise UsageError(f"cache_type is {cache_type!r}", expected='"float16" or "float32"')
    context = _context(checkpoint, ctx)
    _fits(checkpoint, context, CACHE_TYPES[cache_type])
    tokenizer = load_tokenizer(checkpoint)
    native.load()  # what is wrong with it is not a tensor's fault
    if first is not None:
        first(Prompts(checkpoint, tokenizer, context))
    with LoadingBar(f"loading {checkpoint.spec.name}") as bar:
        parts = load_parts(checkpoint, context, bar, terms=_TERMS[activations])
    decoder = make_decoder(parts.config, parts.weights)
    seconds = time.monotonic() - start
    return Engine(checkpoint, decoder, tokenizer, context, seconds, CACHE_TYPES[cache_type])


def _context(checkpoint: Checkpoint, ctx: int | None) -> int:
    if ctx is None:
        return default_context(checkpoint)
    longest = longest_context(checkpoint)
    if not whole(ctx) or ctx < 1 or (longest is not None and ctx > longest):
        raise UsageError(
            f"a context of {ctx:,} tokens" if whole(ctx) else f"ctx is {ctx!r}",
            where="--ctx",
            expected=f"from 1 to {longest:,}, which the model was made for"
            if longest
            else "1 or more",
        )
    return ctx


def _fits(checkpoint: Checkpoint, context: int, dtype: torch.dtype) -> None:
    """Raise UsageError where weights and cache are more than the memory that is free."""
    config = decoder_config(checkpoint, context)
    weights = sum(h.nbytes for h in checkpoint.headers)
    cache = nbytes(config, context, 1, dtype)
    free = probe().available
    if weights + cache > free:
        raise UsageError(
            f"{checkpoint.spec.name} does not fit: its weights take {weights:,} bytes and a "
            f"context of {context:,} tokens {cache:,}, free are {free:,}",
            expected="room for both",
            remedy="a smaller --ctx, or the model in a smaller format (`gateup plan` lists what "
            "would fit)",
        )


class Session:
    """A cache that is kept between answers: what a new prompt has in common with it is reused."""

    def __init__(self, decoder: Decoder, capacity: int, dtype: torch.dtype = torch.float16) -> None:
        self.decoder = decoder
        self.cache = decoder.new_cache(capacity, dtype=dtype)
        self.ids: list[int] = []  # tokens whose keys and values are in the cache
        self.user: object = None  # whose answer is being written

    def hold(self, user: object) -> None:
        """Raise UsageError where another answer has taken the session meanwhile."""
        if self.user is not user:
            raise UsageError(
                "another answer was begun with this session, whose text is gone",
                expected="one answer at a time for each session",
                remedy="finish an answer before the next, or take a session of its own for each",
            )

    def prefill(self, ids: Sequence[int]) -> tuple[torch.Tensor, int]:
        """Logits [V] behind the text `ids`, and how many of its tokens were there already."""
        same = 0
        for ours, theirs in zip(self.ids, ids, strict=False):
            if ours != theirs:
                break
            same += 1
        same = min(same, len(ids) - 1)  # the last one gives the logits
        self.cache.truncate(0, same)
        del self.ids[same:]
        for start in range(same, len(ids), CHUNK):
            part = ids[start : start + CHUNK]
            logits = prefill(self.decoder, part, self.cache)
            self.ids += part
        return logits, same

    def step(self, token: int) -> torch.Tensor:
        """Logits [V] behind one more token."""
        logits = self.decoder.forward(torch.tensor([[token]]), self.cache)[0]
        self.ids.append(token)
        return logits


class Stream(Iterator[str]):
    """An answer as it comes: iterate for its text, in whole characters and without stop texts.

    reason  None while it runs; then "end" (the model's own), "stop" (a stop text) or "length"
    ids     the answer's tokens so far
    stats   seconds and tokens so far
    """

    def __init__(
        self,
        engine: Engine,
        session: Session,
        prompt: Sequence[int],
        sampling: Sampling,
        max_tokens: int,
    ) -> None:
        self.reason: str | None = None
        self.ids: list[int] = []
        self.stats = Stats(prompt_tokens=len(prompt))
        self._parts = self._run(engine, session, list(prompt), sampling, max_tokens)

    def __next__(self) -> str:
        return next(self._parts)

    def _run(
        self,
        engine: Engine,
        session: Session,
        prompt: list[int],
        sampling: Sampling,
        max_tokens: int,
    ) -> Iterator[str]:
        sampler, stops = Sampler(sampling), StopTexts(sampling.stop)
        text = engine.tokenizer.stream()
        start = time.monotonic()
        session.user = self
        logits, self.stats.reused = session.prefill(prompt)
        self.stats.prefill_s = time.monotonic() - start
        start = time.monotonic()
        while self.reason is None:
            engine.check(logits, session.cache)
            token = sampler(logits, prompt + self.ids)
            self.ids.append(token)
            self.stats.new_tokens += 1
            self.stats.decode_s = time.monotonic() - start
            if token in engine.tokenizer.stop_ids:
                self.reason = "end"
                break
            out, stopped = stops.push(text.push(token))
            if stopped:
                self.reason = "stop"
            elif len(self.ids) == max_tokens:
                self.reason = "length"
            if out:
                yield out
            session.hold(self)
            if self.reason is None:
                logits = session.step(token)
        if self.reason != "stop":
            out, stopped = stops.push(text.finish())
            self.reason = "stop" if stopped else self.reason
            rest = out + stops.finish()
            if rest:
                yield rest


class Engine(Prompts):
    """A loaded model.

    decoder  what computes; `decoder.name` says which
    load_s   seconds that loading took
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        decoder: Decoder,
        tokenizer: Tokenizer,
        context: int,
        load_s: float = 0.0,
        cache_dtype: torch.dtype = torch.float16,
    ) -> None:
        super().__init__(checkpoint, tokenizer, context)
        self.decoder = decoder
        self.load_s = load_s
        self.cache_dtype = cache_dtype

    def session(self) -> Session:
        """A cache of the whole context, for a conversation."""
        return Session(self.decoder, self.context, self.cache_dtype)

    def stream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        tools: Sequence[Tool] | None = None,
        session: Session | None = None,
        **options: Any,
    ) -> Stream:
        """The answer as it comes. `options` are Sampling's fields: temperature, top_k, …

        prompt      a text to continue, or messages: [{"role": "user", "content": "…"}]
        max_tokens  of the answer; default: 1,024, or what the context leaves
        session     to reuse what it has in common with this prompt

        Raises UsageError where prompt and answer exceed the context: before anything is computed.
        """
        chosen = sampled(sampling, options)
        ids = self.tokens(prompt, tools=tools)
        count = self.room(len(ids), max_tokens)
        if session is None:
            session = Session(self.decoder, len(ids) + count, self.cache_dtype)
        elif session.decoder is not self.decoder:
            raise UsageError("the session is another model's", expected="one of engine.session()")
        return Stream(self, session, ids, chosen, count)

    def generate(self, prompt: Prompt, **options: Any) -> str:
        """The whole answer; options as for `stream`."""
        return "".join(self.stream(prompt, **options))

    def generate_many(
        self,
        prompts: Sequence[Prompt],
        *,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        tools: Sequence[Tool] | None = None,
        **options: Any,
    ) -> list[str]:
        """Answers to several prompts, decoded together: each step reads the weights once for all.

        Raises as `stream`.
        """
        from gateup.engine.batch import decode_batch

        chosen = sampled(sampling, options)
        ids = [self.tokens(p, tools=tools) for p in prompts]
        counts = [self.room(len(x), max_tokens) for x in ids]
        return decode_batch(self, ids, counts, chosen) if ids else []

    def logits(self, ids: Sequence[int] | torch.Tensor) -> torch.Tensor:
        """Float32 logits behind each token of a text, [T, V].

        Raises UsageError where the text is empty, longer than the context, or has tokens outside
        the vocabulary; InputError as generate for logits that are not finite.
        """
        try:
            row = torch.as_tensor(ids).reshape(-1)
        except (TypeError, ValueError, RuntimeError) as e:
            raise UsageError(f"the tokens are {str(ids)[:60]}", expected="whole numbers") from e
        if row.numel() and row.dtype not in (torch.int64, torch.int32):
            raise UsageError(f"tokens of {row.dtype}", expected="whole numbers")
        row = row.to(torch.int64)
        if not 1 <= row.numel() <= self.context:
            raise UsageError(
                f"{row.numel():,} tokens", expected=f"from 1 to the context, {self.context:,}"
            )
        cache = self.decoder.new_cache(row.numel(), dtype=self.cache_dtype)
        parts = [row[at : at + CHUNK] for at in range(0, row.numel(), CHUNK)]
        found = torch.cat([self.decoder.forward(p[None], cache, every=True)[0] for p in parts])
        self.check(found, cache)
        return found

    def check(self, logits: torch.Tensor, cache: KVCache) -> None:
        """Raise InputError where logits are not finite, naming the cache or weights at fault."""
        if bool(torch.isfinite(logits).all()):
            return
        if cache.overflows():
            raise InputError(
                "keys or values of attention are beyond 65,504, where float16 ends",
                where=str(self.checkpoint.path),
                remedy='gateup.load(…, cache_type="float32"), or `gateup run --cache-type float32`',
            )
        name = first_not_finite(self.decoder.weights)
        what = f"{name} has values" if name else "the model computes values"
        raise InputError(
            f"{what} that are not finite (NaN or infinity)",
            where=str(self.checkpoint.path),
            remedy="the file is damaged, or was saved from a run that had diverged: fetch it again",
        )


def sampled(sampling: Sampling | None, options: Mapping[str, Any]) -> Sampling:
    """`sampling` with `options` in place of its fields. Raises UsageError for unknown ones."""
    base = sampling or Sampling()
    known = set(Sampling.__dataclass_fields__)
    unknown = sorted(set(options) - known)
    if unknown:
        raise UsageError(f"unknown option {unknown[0]!r}", expected=", ".join(sorted(known)))
    values = dict(options)
    if isinstance(values.get("stop"), str):
        values["stop"] = (values["stop"],)
    elif isinstance(values.get("stop"), list):
        values["stop"] = tuple(values["stop"])
    return replace(base, **values)
