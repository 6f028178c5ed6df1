"""Keys of generation settings that nothing reads."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding
from gateup.checks.generation_rules import NAMES
from gateup.checks.rule import rule
from gateup.files.header import clip, listed, many

# What transformers' GenerationConfig reads [source: transformers 5.24], without what NAMES has.
TRANSFORMERS = frozenset(
    [
        "assistant_confidence_threshold",
        "assistant_early_exit",
        "assistant_ensemble_weight",
        "assistant_lookbehind",
        "bad_words_ids",
        "begin_suppress_tokens",
        "bos_token_id",
        "cache_config",
        "cache_implementation",
        "compile_config",
        "constraints",
        "continuous_batching_config",
        "decoder_start_token_id",
        "disable_compile",
        "diversity_penalty",
        "do_sample",
        "dola_layers",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "encoder_repetition_penalty",
        "eos_token_id",
        "epsilon_cutoff",
        "eta_cutoff",
        "exponential_decay_length_penalty",
        "force_words_ids",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "guidance_scale",
        "is_assistant",
        "length_penalty",
        "low_memory",
        "max_cache_len",
        "max_matching_ngram_size",
        "max_time",
        "min_length",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "num_beam_groups",
        "output_attentions",
        "output_hidden_states",
        "output_logits",
        "output_scores",
        "pad_token_id",
        "penalty_alpha",
        "prefill_chunk_size",
        "prompt_lookup_num_tokens",
        "remove_invalid_values",
        "renormalize_logits",
        "return_dict_in_generate",
        "sequence_bias",
        "speculation_type",
        "stop_strings",
        "suppress_tokens",
        "target_lookbehind",
        "token_healing",
        "top_h",
        "transformers_version",
        "use_cache",
        "use_mtp",
        "watermarking_config",
    ]
)
# Of other engines and of files as published.
OTHERS = frozenset(
    [
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "logit_bias",
        "mirostat",
        "mirostat_tau",
        "mirostat_eta",
        "chat_format",
        "max_window_size",
        "user_token_id",
        "assistant_token_id",
        "repeat_last_n",
        "skip_special_tokens",
        "logprobs",
        "model_type",
        "architectures",
    ]
)
KNOWN = TRANSFORMERS | OTHERS | {n for names in NAMES.values() for n in names}
MAX_UNKNOWN = 100  # compared with the known ones


@rule(
    "generation.keys",
    "Every setting is one that something reads",
    needs=["generation"],
    worst="note",
)
def keys(context: Context) -> Iterable[Finding]:
    """A setting under a name that no engine has changes nothing, and nobody says so: transformers
    keeps unknown keys of generation_config.json and never looks at them.

        temprature: 0.6            temperature stays 1
        repetition_penality: 1.1   there is no penalty
    """
    settings = context.generation or {}
    unknown = [k for k in settings if k not in KNOWN and not k.startswith("_")][:MAX_UNKNOWN]
    if not unknown:
        return
    near = {
        k: next(iter(get_close_matches(k.lower().replace("-", "_"), KNOWN, 1, cutoff=0.85)), "")
        for k in unknown
    }
    meant = [f"{near[k]} for {clip(k, 40)}" for k in unknown if near[k]]
    source = context.source("generation")
    yield Finding(
        "generation.keys",
        "note",
        f"{many(len(unknown), 'setting')} that nothing here is known to read: {listed(unknown, 4)}",
        tuple(
            Evidence(clip(k, 60), clip(settings[k], 40), f"{near[k]}?" if near[k] else "", source)
            for k in unknown
        ),
        "transformers keeps such a key and never looks at it.",
        f"write {listed(meant, 6)}" if meant else "",
        {"keys": len(unknown)},
    )
