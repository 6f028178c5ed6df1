"""The chat template: one, and with the tokenizer whose tokens it writes."""

from __future__ import annotations

from collections.abc import Iterable

from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding
from gateup.checks.rule import rule


@rule(
    "generation.template", "There is one chat template, and a tokenizer to read it", worst="warning"
)
def template(context: Context) -> Iterable[Finding]:
    """A chat template turns messages into the text that the model was trained on. It stands in
    tokenizer_config.json (chat_template) or, since transformers writes it so, in a file of its
    own, chat_template.jinja, which wins where both are there. Engines differ: some read the one
    place only, and a file that was edited in the other is another prompt for them.

        chat_template.jinja with a system line, tokenizer_config.json without: answers differ by
        engine, and nothing complains

    A template without a tokenizer beside it is half of a chat model: its markers (<|im_start|>)
    are tokens that only the tokenizer's files define.
    """
    alone = context.template
    if alone is None:
        return
    source = context.source("template")
    if context.tokenizer is None and context.adapter_tokenizer is None:
        if context.checkpoint.kind == "gguf":
            return  # the GGUF has its own
        yield Finding(
            "generation.template",
            "warning",
            f"{source} is here, and no tokenizer",
            (Evidence("tokenizer", "absent", "tokenizer.json, tokenizer_config.json", source),),
            "apply_chat_template is the tokenizer's: without its files the template cannot be used,"
            " and its markers are no tokens.",
            "fetch tokenizer.json and tokenizer_config.json of the model, or save them with"
            " tokenizer.save_pretrained(FOLDER)",
        )
        return
    own = context.tokenizer.config.get("chat_template") if context.tokenizer else None
    if isinstance(own, str) and own.strip() != alone.strip():
        at = next((i for i, (a, b) in enumerate(zip(own, alone, strict=False)) if a != b), None)
        at = min(len(own), len(alone)) if at is None else at
        yield Finding(
            "generation.template",
            "warning",
            f"{source} and tokenizer_config.json have different chat templates",
            (
                Evidence(
                    "tokenizer_config.json, chat_template",
                    f"{len(own):,} characters",
                    f"{len(alone):,}, the same text",
                    f"{source}; they part at character {at:,}",
                ),
            ),
            "transformers takes the file of its own; engines that read tokenizer_config.json alone"
            " write another prompt.",
            "keep one: delete chat_template from tokenizer_config.json, or make them equal",
            {"differs_at": at},
        )
