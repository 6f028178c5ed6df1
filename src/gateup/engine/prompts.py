"""What a model reads, known before its weights are: a prompt's tokens, and the room behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateup.engine.chat import Message, Tool, pick_template, render
from gateup.engine.spec_config import longest_context
from gateup.engine.tokenizer import Tokenizer
from gateup.errors import InputError, UsageError
from gateup.files.checkpoint import Checkpoint
from gateup.ops.arguments import positive

# Tokens of an answer where nobody says how many; fewer where the context ends before.
DEFAULT_TOKENS = 1024

Prompt = str | Sequence[Message]
# What a message may carry beside its role; an answer that only calls tools has no content.
_CONTENT = {"content", "tool_calls"}


def _looked_at(prompt: object) -> None:
    """Raise UsageError for what is neither text nor messages."""
    if isinstance(prompt, str):
        return
    messages = isinstance(prompt, list | tuple) and all(
        isinstance(m, Mapping) and isinstance(m.get("role"), str) and _CONTENT & m.keys()
        for m in prompt
    )
    if not messages:
        raise UsageError(
            f"the prompt is {str(prompt)[:60]!r}",
            expected='a text, or messages [{"role": "user", "content": "…"}, …]',
        )


class Prompts:
    """A model's tokenizer and context.

    checkpoint  what was opened
    context     tokens that prompt and answer may have together
    """

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer, context: int) -> None:
        self.checkpoint = checkpoint
        self.tokenizer = tokenizer
        self.context = context

    def tokens(
        self,
        prompt: Prompt,
        *,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """A text's tokens, or those of messages in the model's chat template.

        variables  what the template reads beside messages and tools (enable_thinking, …)

        Raises InputError (no template, or it refuses), UsageError (an empty prompt).
        """
        _looked_at(prompt)
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
        else:
            text = render(
                pick_template(self.tokenizer.templates, tools),
                prompt,
                tools=tools,
                special=self.tokenizer.special,
                variables=variables,
            )
            ids = self.tokenizer.encode(text, special=False)
        if not ids:
            raise UsageError("the prompt has no tokens", expected="some text")
        if max(ids) >= self.checkpoint.spec.vocab_size:
            raise InputError(
                f"the tokenizer gives token {max(ids):,}, the model embeds "
                f"{self.checkpoint.spec.vocab_size:,}",
                where=str(self.checkpoint.path),
                remedy="use the tokenizer that belongs to the model",
            )
        return ids

    def room(self, prompt: int, max_tokens: int | None) -> int:
        """Tokens that an answer may have. Raises UsageError where there is no room for them."""
        left = self.context - prompt
        if max_tokens is not None:
            positive("max_tokens", max_tokens)
        if left < (max_tokens or 1):
            wanted = f" and {max_tokens:,} for the answer" if max_tokens else ""
            longest = longest_context(self.checkpoint)
            more = longest is None or longest > self.context
            raise UsageError(
                f"the prompt has {prompt:,} tokens{wanted}; the context is {self.context:,}",
                expected="room for the prompt and at least one token",
                remedy=(f"--ctx {prompt + (max_tokens or DEFAULT_TOKENS)}" if more else "")
                + (" or " if more else "")
                + "a shorter prompt",
            )
        return min(left, max_tokens or DEFAULT_TOKENS)
