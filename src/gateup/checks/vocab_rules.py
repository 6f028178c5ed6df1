"""The vocabulary's matrices: embedding and head, the tokenizer's entries, a GGUF's tokens."""

from __future__ import annotations

from collections.abc import Iterable

from gateup.checks.adapter_parts import saved_modules
from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding, Severity
from gateup.checks.measured import SecondHead
from gateup.checks.rule import rule
from gateup.files.gguf import Skipped
from gateup.files.header import many


@rule("config.tied", "Tied embeddings are stored once", needs=["headers"])
def tied(context: Context) -> Iterable[Finding]:
    """With tie_word_embeddings the output head is the embedding matrix. A separate lm_head.weight
    beside it is V·H parameters too many: the model is counted larger than it is, and the file is
    larger. If the two are equal, that is all.

    If they differ (one was trained, merged or quantised alone), programs part ways: transformers 5
    warns and ties nothing, so the stored head is used; vLLM obeys the config, leaves lm_head out
    and uses the embedding. One file, two models. --deep compares the two.

    Example: a merge of gemma-2-9b lists lm_head.weight. 256,000·3,584 = 917,504,000 parameters
    too many: 9,241,705,984 become 10,159,209,984, and people call it a 10B.
    """
    spec = context.spec
    for m in context.mismatches("head"):
        head = m.tensors[0]
        excess = spec.vocab_size * spec.hidden_size
        params = spec.params
        nbytes = sum(t.nbytes for t in m.tensors)
        seen = context.scan.head if context.scan else None
        severity, compared, cause, remedy = _second_head(context, head.name, seen)
        yield Finding(
            "config.tied",
            severity,
            f"{head.name} is stored although the embeddings are tied: {excess:,} parameters too "
            f"many ({params:,} become {params + excess:,})",
            (
                Evidence(
                    head.name,
                    f"{list(head.shape)}, {nbytes:,} bytes in {head.file.name}",
                    "no such tensor",
                    f"{context.source('config')}, tie_word_embeddings true",
                ),
                *compared,
            ),
            cause,
            remedy,
            {"excess": excess, "params": params, "bytes": nbytes}
            | ({"unequal_rows": seen.unequal, "rows": seen.rows} if seen else {}),
        )


def _second_head(
    context: Context, name: str, seen: SecondHead | None
) -> tuple[Severity, tuple[Evidence, ...], str, str]:
    """(severity, what --deep saw, why, what to do) of a head beside the embedding it is tied to."""
    writer = "A writer unpacked the tie: a merge or a conversion that stores every parameter."
    drop = f"drop {name}" + (
        "" if context.checkpoint.kind == "gguf" else " and its entry in the index"
    )
    differ = (
        "llama.cpp uses the stored head"
        if context.checkpoint.kind == "gguf"
        else "transformers 5 keeps both and uses the stored head, vLLM obeys the config and uses"
        " the embedding"
    )
    if seen is None:
        return (
            "warning",
            (),
            f"{writer} If the two are equal they are tied at load and nothing is lost but the "
            f"bytes. If they differ, {differ}. Headers cannot show which it is; --deep compares.",
            f"{drop}, if it equals the embedding; if it does not, it was trained apart: set "
            "tie_word_embeddings to false",
        )
    against = f"the embedding's {seen.rows:,} rows"
    if not seen.unequal:
        found = Evidence(name, "every value equal", against, "--deep")
        return "warning", (found,), f"{writer} Nothing is lost but the bytes.", drop
    return (
        "error",
        (
            Evidence(
                name,
                f"{many(seen.unequal, 'row')} of {seen.rows:,} differ, by {seen.largest:.3g} at "
                "most",
                against,
                "--deep",
            ),
        ),
        f"The head is not the embedding, whatever tie_word_embeddings says: {differ}.",
        "set tie_word_embeddings to false if the head was trained or merged on purpose: then every "
        f"program uses it. Otherwise {drop}",
    )


@rule("config.vocab", "The vocabulary holds the tokenizer's entries", needs=["tokenizer"])
def vocab(context: Context) -> Iterable[Finding]:
    """The embedding has vocab_size rows. More rows than the tokenizer has entries are normal:
    they pad the matrix to a multiple of 64 or 128, and no token has their ids. Only a tokenizer
    that has outgrown the embedding needs a resize; shrinking to len(tokenizer) is always wrong
    (adapters, tensor parallelism and the base's own files stop fitting).

    Example: Qwen2.5-7B has vocab_size 152,064 and len(tokenizer) 151,665. 399 padding rows,
    nothing to do. An adapter that saved embed_tokens as [151665, 3584] was made by a class that
    shrank the base to the tokenizer: load it with plain PeftModel, or resize its base to 151,665
    first.
    """
    tokenizer = context.tokenizer
    assert tokenizer is not None
    V = context.spec.vocab_size
    need = max(tokenizer.highest + 1, tokenizer.size)
    source = f"{tokenizer.path.name}/{tokenizer.source}"
    numbers = {"vocab_size": V, "tokenizer": tokenizer.size, "highest_id": tokenizer.highest}
    evidence = (
        Evidence(
            "vocab_size",
            f"{V:,}",
            f"{need:,} or more",
            f"{source}: {tokenizer.size:,} entries, highest id {tokenizer.highest:,}",
        ),
    )
    if need > V and not _grown(context, need):
        beyond = sorted((i, t) for t, i in tokenizer.added.items() if i >= V)
        names = ", ".join(f"{t!r} = {i}" for i, t in beyond[:3])
        target = -(-need // 64) * 64
        yield Finding(
            "config.vocab",
            "error",
            f"the tokenizer has ids up to {tokenizer.highest:,}, the embedding {V:,} rows",
            evidence,
            "Tokens beyond the embedding end in an index error, on a GPU in a device-side assert."
            + (f" Beyond it: {names}." if names else ""),
            f"model.resize_token_embeddings({need}, pad_to_multiple_of=64) makes {target:,} rows "
            f"({(target - V) * context.spec.hidden_size:,} new weights a matrix), which have to "
            "be trained; or use the tokenizer that belongs to the model",
            {**numbers, "rows": target},
        )
    elif need < V:
        yield Finding(
            "config.vocab",
            "note",
            f"{V - need:,} rows of the vocabulary pad it: {V:,} rows, {tokenizer.size:,} tokens",
            evidence,
            "Normal: no token has these ids. Only growth needs a resize.",
            "never shrink the matrix to len(tokenizer)",
            {**numbers, "padding": V - need},
        )


def _grown(context: Context, need: int) -> bool:
    """Whether the adapter stores an embedding with rows for all tokens: adapter.vocabulary's."""
    if context.adapter is None:
        return False
    saved = saved_modules(context.spec, context.adapter)
    return any("embed" in n and t.shape[:1] >= (need,) for n, (t, _) in saved.items())


@rule("config.gguf_vocab", "A GGUF's embedding has a row for each of its tokens", needs=["headers"])
def gguf_vocab(context: Context) -> Iterable[Finding]:
    """llama.cpp takes the vocabulary's size from the list of tokens and wants an embedding of
    exactly so many rows: its converter fills the list up with [PAD…] tokens where config.json
    has more rows than the tokenizer has entries. Token ids of bos, eos and the like must be in it.

    Example: tokenizer.ggml.tokens holds 151,665 strings, token_embd.weight has 151,936 rows. The
    file does not load: "tensor 'token_embd.weight' has wrong shape".
    """
    tokens = context.checkpoint.metadata.get("tokenizer.ggml.tokens")
    if context.checkpoint.kind != "gguf" or not isinstance(tokens, list | Skipped):
        return
    count = tokens.length if isinstance(tokens, Skipped) else len(tokens)
    V = context.spec.vocab_size
    if count and count != V:
        yield Finding(
            "config.gguf_vocab",
            "error",
            f"the GGUF lists {count:,} tokens, its embedding has {V:,} rows",
            (Evidence("token_embd.weight", f"{V:,} rows", f"{count:,}", "tokenizer.ggml.tokens"),),
            "llama.cpp wants one row for each token and refuses the file. Embedding and tokenizer "
            "come from different models, or a converter did not pad the list.",
            "convert again with the model's own tokenizer in the folder; llama.cpp's converter "
            "pads the list by itself",
            {"tokens": count, "rows": V},
        )
    for key in ("bos", "eos", "unknown", "padding"):
        name = f"tokenizer.ggml.{key}_token_id"
        number = context.checkpoint.metadata.get(name)
        if isinstance(number, int) and number >= max(count, 1):
            yield Finding(
                "config.gguf_vocab",
                "warning",
                f"{name} is {number:,}, the list has {count:,} tokens",
                (Evidence(name, f"{number:,}", f"below {count:,}", "tokenizer.ggml.tokens"),),
                "llama.cpp warns and takes its default, so the text may not end where it should.",
                "convert again with the model's own tokenizer in the folder",
                {"id": number, "tokens": count},
            )
