"""What a model is to run on: a size, a named card, several of them, or this machine (probed).

A card's memory is its data sheet's GB read as GiB, which is what drivers report to within 1%. A
size that a user types is a card's size too: 24GB, 24G and 24GiB are all 24·2^30 bytes, and a size
in bytes is exact (24000000000B).
"""

from __future__ import annotations

import difflib
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from gateup.account.figure import Figure
from gateup.account.machine_data import CARDS, UNIFIED, looked_up
from gateup.errors import UsageError

GIB = 1 << 30
MIN_MEMORY, MAX_MEMORY = 10**6, 1 << 50
MAX_COUNT = 16384

Kind = Literal["gpu", "cpu", "unified"]

# Memory that is not the model's, by engine: CUDA context, library workspaces, allocator slack.
_RESERVE = {"llama.cpp": GIB // 2, "transformers": 3 * GIB // 4, "gateup": 3 * GIB // 4}
_RESERVE_VLLM = GIB


@dataclass(frozen=True)
class Device:
    """`count` like devices, each with `memory` bytes.

    bandwidth  bytes per second of that memory; None: not known, so no roofline
    flops      dense peak per second by dtype ("f32", "bf16", "f16", "f8_e4m3", "i8")
    kind       "gpu" has its own memory; "unified" shares the host's (Apple, Jetson); "cpu" is RAM
    in_use     bytes of `memory` that other programs hold now (probed; 0 where not known)
    source     where the figures are from
    note       how the size that was typed is read; "" where there is nothing to say
    """

    name: str
    memory: int
    bandwidth: float | None = None
    flops: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    count: int = 1
    kind: Kind = "gpu"
    in_use: int = 0
    source: str = ""
    note: str = ""

    @property
    def label(self) -> str:
        """ "2x RTX 4090" """
        return self.name if self.count == 1 else f"{self.count}x {self.name}"

    def peak_flops(self, dtype: str) -> float | None:
        """Peak for GEMMs in `dtype`; None where the sheet gives none."""
        return self.flops.get(dtype)

    def reserve(self, engine: str = "transformers") -> Figure:
        """Bytes of each device that a model cannot have: an estimate, shown beside the verdict."""
        if self.kind == "cpu":
            own, why = 0, "memory in use by other programs"
        elif self.kind == "unified":
            # Metal's recommendedMaxWorkingSetSize: 10,922 MiB of 16 GiB, 48 GiB of 64 GiB
            own = self.memory // 3 if self.memory <= 36 * GIB else self.memory // 4
            why = (
                "share of unified memory the GPU does not get by default (1/3 to 36 GiB, else 1/4)"
            )
        else:
            own = _RESERVE.get(engine, GIB)
            if engine == "vllm":  # --gpu-memory-utilization is kept to 0.95
                own = max(_RESERVE_VLLM, self.memory // 20)
            own = min(own, self.memory // 4)
            why = (
                "CUDA context, workspaces and allocator slack; reported 0.3 to 1 GiB, not measured"
            )
        total = min(self.memory, own + self.in_use)
        return Figure(
            total, "B", "estimate", "reserve + in use", f"{own:,} + {self.in_use:,}", source=why
        )

    def capacity(self, engine: str = "transformers") -> int:
        """Bytes of each device that a model can have."""
        return self.memory - int(self.reserve(engine).value)


def _gpus() -> dict[str, Device]:
    table: dict[str, Device] = {}
    for c in CARDS:
        flops = {k: t * 1e12 for k, t in c.tflops.items()}
        kind: Kind = "unified" if c.unified else "gpu"
        table[c.key] = Device(
            c.name,
            c.gib * GIB,
            c.gbps * 1e9,
            MappingProxyType(flops),
            kind=kind,
            source=f"{c.source}; looked up at {looked_up(c.key)}",
        )
    for u in UNIFIED:
        for gib in u.gib:
            table[f"{u.key}-{gib}gb"] = Device(
                f"{u.name} {gib} GB",
                gib * GIB,
                u.gbps * 1e9,
                kind="unified",
                source=f"{u.source}; looked up at {looked_up(u.key)}",
            )
    return table


GPUS: Mapping[str, Device] = MappingProxyType(_gpus())


def _squash(name: str) -> str:
    """Letters and digits only, without vendor words: "NVIDIA GeForce RTX 4090" -> "rtx4090"."""
    low = re.sub(r"nvidia|geforce|amd|instinct|radeon|tesla|jetson|apple|quadro", "", name.lower())
    return re.sub(r"[^a-z0-9]", "", low)


_BY_SQUASHED: Mapping[str, str] = MappingProxyType(
    {_squash(key): key for key in GPUS}
    | {_squash(alias): c.key for c in CARDS for alias in c.aliases}
)
# Powers of 1024 whatever the spelling: no card is sold in powers of 1000.
_UNITS = {
    "b": 1,
    **{
        unit: 1 << power
        for letter, power in (("k", 10), ("m", 20), ("g", 30), ("t", 40))
        for unit in (letter, f"{letter}b", f"{letter}ib")
    },
}
_FORMS = (
    "a size (24GB = 24GiB; 24000000000B), a card (rtx4090, h100), several (2x24GB, 2xh100), or this"
)


def parse_device(text: str) -> Device:
    """The device that `text` names. "80G" and "80GB" are 80·2^30 bytes, as cards are sold.

    A card sold in several sizes is the one named ("a100-40gb"), else its usual one (a100: 80 GB).
    Raises UsageError naming the nearest known cards.
    """
    rest = text.strip().lower()
    count = 1
    times = re.fullmatch(r"(\d{1,9})\s*[x×*]\s*(.+)", rest)
    if times:
        count, rest = int(times[1]), times[2].strip()
        if not 1 <= count <= MAX_COUNT:
            raise UsageError(f"--device {text}: {count} devices", expected=f"1 to {MAX_COUNT}")
    if rest == "this":
        here = probe().device
        return here if count == 1 else replace(here, count=count)
    device = _named(rest) or _sized(text, rest)
    if device is None:
        raise _unknown(text, rest)
    return replace(device, count=count)


def _sized(text: str, size: str) -> Device | None:
    """A plain size; None where the text is not one."""
    found = re.fullmatch(r"([+-]?\d{1,30}(?:\.\d{1,30})?)\s*([a-z]*)", size)
    if not found:
        return None
    if found[2] not in _UNITS:
        raise UsageError(
            f"--device {text}: {'no unit' if not found[2] else f'unit {found[2]!r} is not known'}",
            expected=_FORMS,
        )
    number = found[1]
    whole, _, part = number.lstrip("+-").partition(".")
    scale = 10 ** len(part)
    nbytes = int(whole + part) * _UNITS[found[2]] // scale
    if number.startswith("-") or not MIN_MEMORY <= nbytes <= MAX_MEMORY:
        raise UsageError(
            f"--device {text}: {'-' if number.startswith('-') else ''}{nbytes:,} bytes of memory",
            expected=f"from {MIN_MEMORY:,} to {MAX_MEMORY:,} bytes",
        )
    label = f"{found[1]} {_spelled(found[2])}"
    note = ""
    if found[2] != "b" and not found[2].endswith("ib"):
        binary = f"{found[1]} {found[2][0].upper()}iB"
        note = f"{label} card = {binary} ({nbytes:,} bytes)"
    return Device(label, nbytes, source="as given", note=note)


def _spelled(unit: str) -> str:
    return unit[0].upper() + unit[1:].replace("ib", "iB").replace("b", "B") if unit != "b" else "B"


def _named(name: str) -> Device | None:
    """A card of the table, with or without its memory size in the name."""
    key = _BY_SQUASHED.get(_squash(name))
    if key is not None:
        return GPUS[key]
    sized = re.fullmatch(r"(.+?)[\s_-]*(\d{1,4})\s*(?:gb|gib|g)", name)
    if sized:
        key = _BY_SQUASHED.get(_squash(sized[1]))
        if key is not None and GPUS[key].memory == int(sized[2]) * GIB:
            return GPUS[key]
    return None


def _unknown(text: str, name: str) -> UsageError:
    squashed = _squash(name)
    family = [k for k in GPUS if squashed and _squash(k).startswith(squashed)]
    near = difflib.get_close_matches(squashed, _BY_SQUASHED, n=12, cutoff=0.6)
    nearest = list(dict.fromkeys([*family, *(_BY_SQUASHED[n] for n in near)]))[:6]
    return UsageError(
        f"--device {text}: not a device gateup knows",
        expected=_FORMS,
        remedy=f"nearest names: {', '.join(nearest)}" if nearest else "give its memory: 24GB",
    )


@dataclass(frozen=True)
class Machine:
    """This machine, as probed.

    ram        bytes of RAM this process may use (cgroup limit included)
    available  bytes of it that are free for new programs now
    gpus       what nvidia-smi lists, one Device each; empty without it
    """

    name: str
    cores: int
    ram: int
    available: int
    gpus: tuple[Device, ...] = ()
    unified: Device | None = None

    @property
    def device(self) -> Device:
        """What "this" means: the GPUs (the smallest, as many as there are), else the RAM."""
        if self.gpus:
            least = min(self.gpus, key=lambda g: g.memory - g.in_use)
            return replace(least, count=len(self.gpus))
        if self.unified:
            return self.unified
        return Device(
            f"this machine's RAM ({self.cores} cores)",
            self.ram,
            kind="cpu",
            in_use=max(0, self.ram - self.available),
            source="probed: /proc/meminfo and cgroup limit",
        )


def cores() -> int:
    """Processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        return os.cpu_count() or 1


def probe(root: Path = Path("/")) -> Machine:
    """RAM, GPUs and cores of this machine. `root` stands in for / in tests.

    Raises UsageError where the memory cannot be found out.
    """
    name = platform.node() or "this machine"
    if platform.system() == "Darwin":
        total = _int(_ask("sysctl", "-n", "hw.memsize"))
        chip = _ask("sysctl", "-n", "machdep.cpu.brand_string").strip()
        unified = _named(f"{chip} {(total or 0) // GIB}gb")
        if total:
            return Machine(name, cores(), total, total, (), unified)
    total, available = _meminfo(root)
    for limit, free in _cgroup(root):
        total, available = min(total, limit), min(available, free)
    if total <= 0:
        raise UsageError(
            "--device this: the size of this machine's memory is not known",
            where=str(root / "proc/meminfo"),
            remedy="give it: --device 16GB",
        )
    return Machine(name, cores(), total, max(0, available), _nvidia())


def _read(path: Path) -> str:
    """A small text file of the kernel's; "" where it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as f:
            return f.read(1 << 16)
    except OSError:
        return ""


def _int(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _meminfo(root: Path) -> tuple[int, int]:
    """(MemTotal, MemAvailable) in bytes; (0, 0) where there is no /proc."""
    lines = re.findall(r"^(\w+):\s+(\d{1,15}) kB", _read(root / "proc/meminfo"), re.M)
    found = {str(key): int(kib) * 1024 for key, kib in lines}
    return found.get("MemTotal", 0), found.get("MemAvailable", found.get("MemFree", 0))


def _cgroup(root: Path) -> list[tuple[int, int]]:
    """(limit, free) of every cgroup above this process that limits memory (v2 and v1)."""
    out = []
    for line in _read(root / "proc/self/cgroup").splitlines()[:64] or ["0::/"]:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers not in ("", "memory"):
            continue
        v1 = controllers == "memory"
        base = root / ("sys/fs/cgroup/memory" if v1 else "sys/fs/cgroup")
        names = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes")
            if v1
            else ("memory.max", "memory.current")
        )
        parts = [p for p in path.split("/") if p and p != ".."]
        for depth in range(len(parts) + 1):
            folder = base.joinpath(*parts[:depth])
            limit, used = (_int(_read(folder / n)) for n in names)
            if limit is None or limit >= 1 << 60:  # v1 writes 2^63 - 4096 for "no limit"
                continue
            cache = re.search(
                r"^(?:total_)?inactive_file (\d{1,18})$", _read(folder / "memory.stat"), re.M
            )
            held = max(0, (used or 0) - (int(cache[1]) if cache else 0))
            out.append((limit, max(0, limit - held)))
    return out


def _ask(*command: str) -> str:
    """Standard output of a short command; "" where it is missing, fails or takes over 5 s."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def _nvidia() -> tuple[Device, ...]:
    query = "--query-gpu=name,memory.total,memory.used"
    return parse_nvidia_smi(_ask("nvidia-smi", query, "--format=csv,noheader,nounits"))


def parse_nvidia_smi(text: str) -> tuple[Device, ...]:
    """Devices from nvidia-smi's "name, total MiB, used MiB" lines; others are passed over."""
    out = []
    for line in text.splitlines()[:MAX_COUNT]:
        fields = [f.strip() for f in line.rsplit(",", 2)]
        total = _int(fields[1]) if len(fields) == 3 else None
        if not total:
            continue
        name, used = fields[0], _int(fields[2])
        known = _named(name)
        out.append(
            Device(
                name,
                total << 20,
                known.bandwidth if known else None,
                known.flops if known else MappingProxyType({}),
                in_use=min(used or 0, total) << 20,
                source="probed: nvidia-smi" + (f"; peaks: {known.source}" if known else ""),
            )
        )
    return tuple(out)
