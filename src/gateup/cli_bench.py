"""`gateup bench`: this machine's limits, our kernels against them, and the peers installed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateup.errors import UsageError

if TYPE_CHECKING:
    from gateup.bench.operators import Asked
    from gateup.files.checkpoint import Checkpoint

_SHAPE = re.compile(r"(\d{1,7})[xX×](\d{1,7})")
_TOKENS = "1,8,64,512"
DEFAULT_FORMATS = "bf16,q8_0,q6_k,q4_k,q4_0"

Model = Annotated[
    str | None,
    typer.Argument(metavar="[MODEL]", help="Measure this model whole; its FFN gives the shape."),
]
Shape = Annotated[
    str | None, typer.Option("--shape", metavar="HxI", help="An FFN of this shape: 4096x14336.")
]
Kinds = Annotated[
    str | None, typer.Option("--formats", help=f"Comma between them (default: {DEFAULT_FORMATS}).")
]
Tokens = Annotated[str, typer.Option("--tokens", help="Rows of x, comma between them.")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Default: every core of this process.")
]
Turns = Annotated[int, typer.Option("--turns", min=1, help="Measurements of each, taking turns.")]
NoPeers = Annotated[bool, typer.Option("--no-peers", help="Ours alone.")]
PeersPython = Annotated[
    Path | None,
    typer.Option("--peers-python", help="A Python whose environment has the peers."),
]
NoFfn = Annotated[bool, typer.Option("--no-ffn", help="The model whole, without its FFN.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, and nothing else.")]


def bench(
    model: Model = None,
    shape: Shape = None,
    kinds: Kinds = None,
    tokens: Tokens = _TOKENS,
    threads: Threads = None,
    turns: Turns = 5,
    no_peers: NoPeers = False,
    peers_python: PeersPython = None,
    no_ffn: NoFfn = False,
    as_json: Json = False,
) -> None:
    """This machine's peaks; FFNs by format and T against the roofline; installed peers."""
    _need_torch()
    from gateup.account.machine import cores
    from gateup.account.report.console import line, make_console
    from gateup.bench import operators, report, whole
    from gateup.bench.machine import measure_peaks

    checkpoint = _opened(model)
    if no_ffn and checkpoint is None:
        raise UsageError("--no-ffn leaves nothing to measure", remedy="name a model")
    count = threads or cores()
    asked = _asked(checkpoint, shape, kinds, tokens, count)
    asked = _with_peers(asked, turns, not no_peers, peers_python)
    console, notes = make_console(sys.stderr if as_json else sys.stdout), list[str]()

    def note(text: str) -> None:
        notes.append(text)
        line(console, text, style="dim", indent=2)

    peaks = measure_peaks(count)
    report.render_peaks(console, peaks)
    results = []
    if checkpoint is not None:
        assert model is not None
        file = checkpoint.path if checkpoint.kind == "gguf" else None
        if file is None and not no_peers:
            note("without llama.cpp: the model is not one GGUF file")
        results = whole.run(
            model,
            file if no_peers is False else None,
            threads=count,
            turns=turns,
            peers_python=peers_python,
            note=note,
        )
        report.render_whole(console, checkpoint.spec.name, results)
    cells = []
    if not no_ffn:
        cells = list(operators.run(asked, peaks, note))
        report.render_cells(console, asked, cells)
    if as_json:
        import json

        print(
            json.dumps(
                report.to_json(peaks, None if no_ffn else asked, cells, results, notes),
                allow_nan=False,
            )
        )


def _need_torch() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise UsageError("gateup bench needs torch", remedy="pip install 'gateup[torch]'")


def _opened(model: str | None) -> Checkpoint | None:
    if model is None:
        return None
    from gateup.files.checkpoint import open_model

    checkpoint = open_model(model)
    if not checkpoint.headers:
        raise UsageError(
            f"{model} is a description without weights: nothing to run",
            expected="a GGUF, a folder with safetensors, or smollm2",
        )
    return checkpoint


def _asked(
    checkpoint: Checkpoint | None, shape: str | None, kinds: str | None, tokens: str, threads: int
) -> Asked:
    from gateup.bench.blocks import known
    from gateup.bench.operators import Asked

    hidden, width = _shape(shape) if shape else _shape_of(checkpoint)
    names = tuple(k.strip().lower() for k in (kinds or _kinds_of(checkpoint)).split(","))
    for name in names:
        if name not in known():
            raise UsageError(f"--formats: {name!r} cannot be measured", expected=", ".join(known()))
    counts = []
    for word in tokens.split(","):
        if not word.strip().isdecimal() or not 1 <= int(word) <= 1 << 16:
            raise UsageError(f"--tokens: {word.strip()!r}", expected="numbers from 1 to 65536")
        counts.append(int(word))
    return Asked(hidden, width, names, tuple(counts), threads)


def _with_peers(asked: Asked, turns: int, peers: bool, python: Path | None) -> Asked:
    from dataclasses import replace

    if python is not None and not python.is_file():
        raise UsageError("--peers-python: no such file", where=str(python))
    return replace(asked, turns=turns, peers=peers, peers_python=python)


def _shape(text: str) -> tuple[int, int]:
    found = _SHAPE.fullmatch(text.strip())
    if found is None or not all(1 <= int(n) <= 1 << 20 for n in found.groups()):
        raise UsageError(
            f"--shape {text!r}", expected="hidden_size x intermediate_size, such as 4096x14336"
        )
    return int(found[1]), int(found[2])


def _shape_of(checkpoint: Checkpoint | None) -> tuple[int, int]:
    """Of the model's first gated MLP; 2048 × 8192 without a model."""
    if checkpoint is None:
        return 2048, 8192
    from gateup.model.spec import GatedMLPSpec, MoESpec

    for layer in checkpoint.spec.layers:
        mlp = layer.mlp.expert if isinstance(layer.mlp, MoESpec) else layer.mlp
        if isinstance(mlp, GatedMLPSpec):
            return checkpoint.spec.hidden_size, mlp.intermediate_size
    raise UsageError(f"{checkpoint.spec.name} has no gated MLP", remedy="give a --shape")


def _kinds_of(checkpoint: Checkpoint | None) -> str:
    """The format of the model's gate_proj; all of them without a model."""
    from gateup.bench.blocks import known

    if checkpoint is None:
        return DEFAULT_FORMATS
    for header in checkpoint.headers:
        if "gate" in header.name and "mlp" in (header.canonical or ""):
            return header.type if header.type in known() else DEFAULT_FORMATS
    return DEFAULT_FORMATS
