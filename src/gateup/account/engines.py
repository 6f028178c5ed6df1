"""Engines as others build them: the flags that set an option, and the buffers they allocate.

Flag names [source]: llama.cpp `common/arg.cpp` (as in llama-cpp-python 0.3.36), vLLM's engine
arguments, LLaMA-Factory's `hparams` and transformers' TrainingArguments. LLaMA-Factory takes them
as `key=value` after the YAML file, or as lines of the YAML file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from gateup.account.figure import Figure
from gateup.account.workload import Workload
from gateup.errors import UsageError
from gateup.model.spec import AttentionSpec, LayerSpec, ModelSpec, MoESpec

# What llama.cpp's --cache-type-k/-v and vLLM's --kv-cache-dtype accept, by our format names.
KV_TYPES: Mapping[str, Mapping[str, str]] = {
    "llama.cpp": {
        t: t for t in ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
    },
    "vllm": {"f16": "auto", "bf16": "auto", "f8_e4m3": "fp8_e4m3", "f8_e5m2": "fp8_e5m2"},
}

# llama.cpp quantises V only together with flash attention.
_PLAIN_KV = ("f32", "f16", "bf16")

OPTIMIZERS: Mapping[str, str] = {
    "adamw": "adamw_torch",
    "adamw8bit": "adamw_bnb_8bit",
    "sgd": "sgd",
}


def _kv_llamacpp(value: str) -> str:
    plain = value in _PLAIN_KV
    return f"-ctk {value} -ctv {value}" + ("" if plain else " -fa on")


def _quant_vllm(fmt: str) -> str | None:
    for prefix, name in (
        ("nf4", "bitsandbytes"),
        ("fp8", "fp8"),
    ):
        if fmt == prefix or fmt.startswith(prefix + ":"):
            return f"--quantization {name}"
    for prefix in ("awq", "gptq"):  # not made while loading: vLLM needs such a checkpoint
        if fmt == prefix or fmt.startswith(prefix + ":"):
            return f"MODEL-{prefix.upper()}"
    return {"bf16": "--dtype bfloat16", "f16": "--dtype float16", "f32": "--dtype float32"}.get(fmt)


def _quant_factory(fmt: str) -> str | None:
    return {
        "nf4": "quantization_bit=4 double_quantization=false",
        "nf4:double": "quantization_bit=4 double_quantization=true",
        "int8": "quantization_bit=8",
        "bf16": "",
        "f16": "",
        "f32": "",
    }.get(fmt)


# pure_bf16 trains bf16 weights as they are; bf16 and fp16 are autocast, where LLaMA-Factory keeps
# the weights that are trained in fp32 [source: hparams/finetuning_args.py, model/adapter.py].
_PRECISION = {
    "pure_bf16": "pure_bf16=true",
    "bf16": "bf16=true",
    "f16": "fp16=true",
    "f32": "bf16=false",
}

ZERO3 = "examples/deepspeed/ds_z3_config.json"
FSDP = "examples/accelerate/fsdp_config.yaml"


CARDS = 8  # of one machine, at most
PORT = 29500  # torch.distributed's usual one


def launch_factory(ranks: int, sharding: str, precision: str) -> str:
    """The start of a LLaMA-Factory command line on several cards, run from its own folder.

    sharding  "zero3" (DeepSpeed; refuses quantised weights and pure_bf16), else "fsdp"
              (accelerate; 4-bit weights and nothing else quantised)
              [source: hparams/parser.py, model/model_utils/quantization.py, launcher.py]

    More than a machine's 8 cards are started machine by machine, HOST being the first one's
    address and RANK 0, 1, 2, ….
    """
    each = max(n for n in range(1, CARDS + 1) if ranks % n == 0) if ranks > CARDS else ranks
    machines = ranks // each if each > 1 else 1
    if sharding == "zero3":
        several = f"NNODES={machines} NODE_RANK=RANK MASTER_ADDR=HOST MASTER_PORT={PORT} "
        per_machine = ranks // machines
        return (
            f"FORCE_TORCHRUN=1 {several if machines > 1 else ''}NPROC_PER_NODE={per_machine} "
            "llamafactory-cli train RUN.yaml"
        )
    mixed = {"bf16": "bf16", "f16": "fp16"}.get(precision, "no")
    several = f"--num_machines {machines} --machine_rank RANK "
    several += f"--main_process_ip HOST --main_process_port {PORT} "
    return (
        f"accelerate launch --config_file {FSDP} --num_processes {ranks} "
        f"{several if machines > 1 else ''}"
        f"--mixed_precision {mixed} src/train.py RUN.yaml"
    )


def _targets_factory(targets: Any) -> str | None:
    names = (targets,) if isinstance(targets, str) else tuple(targets)
    groups = {
        "all": "all",
        "attention": "q_proj,k_proj,v_proj,o_proj",
        "mlp": "gate_proj,up_proj,down_proj",
    }
    return "lora_target=" + ",".join(groups.get(n, n) for n in names)


def _method_factory(method: str) -> str | None:
    return {
        "full": "finetuning_type=full",
        "lora": "finetuning_type=lora",
        "qlora": "finetuning_type=lora",
    }.get(method)


Flag = str | Callable[[Any], str | None]

# engine -> option -> template ({} is the value) or function of the value; a function returns None
# for a value the engine does not take.
FLAGS: Mapping[str, Mapping[str, Flag]] = {
    "llama.cpp": {
        "ctx": "-c {}",
        "batch": "-np {}",
        "ubatch": "-ub {}",
        "kv_type": lambda v: _kv_llamacpp(v) if v in KV_TYPES["llama.cpp"] else None,
        "gpu_layers": "-ngl {}",
        "cpu_moe_layers": "--n-cpu-moe {}",
        "flash": lambda v: "-fa on" if v else "-fa off",
        "kv_offload": lambda v: "" if v else "--no-kv-offload",
        "quant": lambda fmt: f"-m MODEL-{fmt.upper()}.gguf",
        "tensor_split": "-ts {}",
        "pp": lambda n: "" if n == 1 else "-sm layer",
    },
    "vllm": {
        "ctx": "--max-model-len {}",
        "batch": "--max-num-seqs {}",
        "ubatch": "--max-num-batched-tokens {}",
        "kv_type": lambda v: (
            f"--kv-cache-dtype {KV_TYPES['vllm'][v]}" if v in KV_TYPES["vllm"] else None
        ),
        "cpu_offload_gb": "--cpu-offload-gb {}",
        "memory_share": "--gpu-memory-utilization {}",
        "quant": _quant_vllm,
        "tp": "--tensor-parallel-size {}",
        "pp": "--pipeline-parallel-size {}",
        "ep": lambda n: "" if n == 1 else "--enable-expert-parallel",
        "graphs": lambda v: "" if v else "--enforce-eager",
    },
    "llama-factory": {
        "ctx": "cutoff_len={}",
        "batch": "per_device_train_batch_size={}",
        "accumulation": "gradient_accumulation_steps={}",
        "quant": _quant_factory,
        "precision": _PRECISION.get,
        "sharding": lambda v: f"deepspeed={ZERO3}" if v == "zero3" else "",
        "method": _method_factory,
        "rank": "lora_rank={}",
        "targets": _targets_factory,
        "optimizer": lambda v: f"optim={OPTIMIZERS[v]}" if v in OPTIMIZERS else None,
        "checkpointing": lambda v: (
            "disable_gradient_checkpointing=" + ("true" if v == "none" else "false")
        ),
        "flash": lambda v: "flash_attn=fa2" if v else "flash_attn=disabled",
        "execution": lambda v: "enable_liger_kernel=true" if v in ("fused", "tiled") else "",
    },
}


def supports(engine: str, option: str, value: Any) -> bool:
    """Whether `engine` has a flag that sets `option` to `value`."""
    flag = FLAGS.get(engine, {}).get(option)
    return flag is not None and (isinstance(flag, str) or flag(value) is not None)


def flags(engine: str, **changes: Any) -> str:
    """The exact flags that set `changes` in `engine`, in the order given: "-c 8192 -ub 256".

    engine   "llama.cpp" (llama-cli, llama-server), "vllm" (vllm serve), "llama-factory"
    changes  options of FLAGS[engine]. With `ctx` and `batch` together llama.cpp's -c is their
             product, because its slots share one context.

    Raises UsageError for an engine or option without an entry, and for values the engine refuses.
    """
    table = FLAGS.get(engine)
    if table is None:
        raise UsageError(f"engine {engine!r} is not known", expected=", ".join(FLAGS))
    if engine == "llama.cpp" and "ctx" in changes and changes.get("batch", 1) > 1:
        changes = {**changes, "ctx": changes["ctx"] * changes["batch"]}
    out = []
    for option, value in changes.items():
        flag = table.get(option)
        if flag is None:
            raise UsageError(f"{engine} has no flag for {option!r}", expected=", ".join(table))
        text = flag.format(value) if isinstance(flag, str) else flag(value)
        if text is None:
            raise UsageError(f"{engine} does not take {option}={value}")
        if text:
            out.append(text)
    return " ".join(out)


def quantize_command(file_type: str) -> str:
    """The llama.cpp command that makes a GGUF of `file_type` from a bf16 one."""
    name = file_type.upper()
    return f"llama-quantize MODEL-BF16.gguf MODEL-{name}.gguf {name}"


# ---- llama.cpp's compute buffer --------------------------------------------------------------

BUFFER_BUILD = "llama.cpp in llama-cpp-python 0.3.36, CPU backend"

# The largest errors of the estimate on the measured grid (tests/facts/compute_buffer.json: 17
# models, n_ubatch 64 to 2048, n_ctx 512 to 131072, flash attention on and off), as fractions.
BUFFER_ERROR = (-0.19, 0.18)

# llama.cpp rounds the cells of a KV cache up to this.
_CELLS = 256


class Phase(NamedTuple):
    """One moment of the graph: bytes per token of the physical batch, and how they come about."""

    name: str
    per_token: int
    formula: str
    numbers: str


def _pad(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _visible(window: int | None, workload: Workload) -> int:
    """KV cells that attention works on: the context, or the window and the batch that enters."""
    cells = _pad(workload.ctx, _CELLS)
    return cells if window is None else min(cells, _pad(window + workload.ubatch, _CELLS))


def _mask(spec: ModelSpec, workload: Workload) -> int:
    """Bytes of the attention masks per token: one per kind of cache, f16 with flash, else f32."""
    windows = {x.attention.window for x in spec.layers if x.attention}
    return (2 if workload.flash else 4) * sum(_visible(w, workload) for w in windows)


def _mlp_phases(layer: LayerSpec, hidden: int, mask: int) -> Iterator[Phase]:
    """gate, up and product of the width in use, and the residual stream around them."""
    tail = f" + 16·{hidden} + {mask}"
    if isinstance(layer.mlp, MoESpec):
        k, width = layer.mlp.top_k, layer.mlp.expert.intermediate_size
        base = 16 * hidden + mask
        yield Phase("mlp", 12 * k * width + base, "12·k·I + 16·H + mask", f"12·{k}·{width}" + tail)
        yield Phase(
            "mlp",
            8 * k * (hidden + width) + mask,
            "8·k·(H + I) + mask",
            f"8·{k}·({hidden} + {width}) + {mask}",
        )
        dense = layer.mlp.shared.intermediate_size if layer.mlp.shared else 0
    else:
        dense = layer.mlp.intermediate_size if layer.mlp else 0
    if dense:
        size = 12 * dense + 16 * hidden + mask
        yield Phase("mlp", size, "12·I + 16·H + mask", f"12·{dense}" + tail)


def _attention_phase(attn: AttentionSpec, hidden: int, mask: int, workload: Workload) -> Phase:
    """q, k, v twice (before and after RoPE) and, without flash attention, the f32 scores."""
    q, kv = attn.num_heads * attn.head_dim, attn.num_kv_heads * attn.head_dim
    if attn.mla:  # the latent is the one K head, and q is absorbed to its width
        kv = attn.mla.kv_lora_rank + attn.mla.qk_rope_head_dim
        q = attn.num_heads * kv
    size = 12 * hidden + 8 * q + 8 * kv + mask
    formula, numbers = "12·H + 8·q + 8·kv + mask", f"12·{hidden} + 8·{q} + 8·{kv} + {mask}"
    if not workload.flash:
        cells = _visible(attn.window, workload)
        size += 4 * attn.num_heads * cells
        formula += " + 4·n_heads·n_kv"
        numbers += f" + 4·{attn.num_heads}·{cells}"
    return Phase("attention", size, formula, numbers)


def compute_buffer_phases(spec: ModelSpec, workload: Workload) -> dict[str, Phase]:
    """The largest "mlp", "attention" and "logits" moment of the graph, in bytes per token.

    The buffer is allocated once for the largest and shared by the others. n_kv is per sequence:
    parallel sequences keep caches of their own (measured: the same size for 1 and 4).
    """
    hidden, mask = spec.hidden_size, _mask(spec, workload)
    windowed = any(x.attention and x.attention.window for x in spec.layers)
    # With two kinds of cache the f16 copy of a mask lives beside its f32 input.
    attention_mask = 2 * mask if windowed and workload.flash else mask
    phases: list[Phase] = []
    for layer in _distinct(spec):
        phases.extend(_mlp_phases(layer, hidden, mask))
        if layer.attention:
            phases.append(_attention_phase(layer.attention, hidden, attention_mask, workload))
    logits = 4 * spec.vocab_size + 8 * hidden
    phases.append(Phase("logits", logits, "4·V + 8·H", f"4·{spec.vocab_size} + 8·{hidden}"))
    out: dict[str, Phase] = {}
    for phase in phases:
        if phase.name not in out or phase.per_token > out[phase.name].per_token:
            out[phase.name] = phase
    return out


def _distinct(spec: ModelSpec) -> list[LayerSpec]:
    """One layer of each kind."""
    return list({(x.attention, x.mlp): x for x in spec.layers}.values())


def llamacpp_compute_buffer(spec: ModelSpec, workload: Workload) -> Figure:
    """Bytes of llama.cpp's compute buffer: n_ubatch tokens at the largest moment of the graph.

    An estimate of the named build: its allocator leaves holes that no short formula follows, and
    other builds order the graph otherwise. Uses ctx, batch, ubatch and flash of `workload`.
    """
    tokens = min(workload.ubatch, _pad(workload.ctx, _CELLS) * workload.batch)
    largest = max(compute_buffer_phases(spec, workload).values(), key=lambda p: p.per_token)
    low, high = BUFFER_ERROR
    return Figure(
        tokens * largest.per_token,
        "bytes",
        "estimate",
        f"n_ubatch·({largest.formula})",
        f"{tokens}·({largest.numbers})",
        f"{BUFFER_BUILD}; error {low:+.0%} to {high:+.0%} on the 680 settings measured",
    )
