"""Memory, bandwidth and dense peaks of cards, as their vendors publish them.

Peaks are without structured sparsity. GeForce cards run 16-bit products with 32-bit accumulation
at half the rate of 16-bit accumulation: bf16 (always the former) and f16 (up to the latter) differ.
Where only the vendor's CUDA cores and boost clock were published, f32 is 2·cores·clock and the
others follow the architecture paper's fixed ratios (1 : 2 : 4 : 8). LOOKED_UP says
where each card's figures were checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Card(NamedTuple):
    """gib: memory; gbps: 10^9 B/s; tflops: dense, 10^12 per second, by dtype."""

    key: str
    name: str
    gib: int
    gbps: float
    tflops: Mapping[str, float]
    source: str
    aliases: tuple[str, ...] = ()
    unified: bool = False


class Unified(NamedTuple):
    """An Apple chip; memory sizes it is sold with at that bandwidth. Apple gives no GEMM peak.

    Apple rounds bandwidths down (200 for 204.8 GB/s), which would make a bound too low: these are
    bus width × transfer rate (LPDDR4X-4266, LPDDR5-6400, -7500 and -8533).
    """

    key: str
    name: str
    gbps: float
    gib: tuple[int, ...]
    source: str = "Apple technical specifications, unrounded"


def _geforce(
    key: str, name: str, gib: int, gbps: float, cores: int, ghz: float, *aliases: str
) -> Card:
    """A GeForce card: key starts with its generation (30: Ampere, 40: Ada, 50: Blackwell)."""
    f32 = 2 * cores * ghz / 1000
    paper, f8 = {
        "3": ("NVIDIA Ampere GA102 whitepaper", False),
        "4": ("NVIDIA Ada GPU architecture whitepaper", True),
        "5": ("NVIDIA RTX Blackwell GPU architecture whitepaper", True),
    }[key[3]]
    peaks = {"f32": f32, "bf16": 2 * f32, "f16": 4 * f32, "i8": 8 * f32}
    if f8:
        peaks["f8_e4m3"] = 8 * f32
    source = f"{paper}; {cores} CUDA cores at {ghz} GHz boost"
    return Card(key, name, gib, gbps, peaks, source, aliases)


def _datacenter(
    key: str,
    name: str,
    gib: int,
    gbps: float,
    f32: float,
    half: float,
    eight: tuple[float | None, float | None],
    source: str,
    *aliases: str,
) -> Card:
    """half: bf16 and f16; eight: (fp8, int8). Volta and Turing multiply bf16 in f32 only."""
    old = key.startswith(("v100", "t4"))
    peaks = {"f32": f32, "bf16": f32 if old else half, "f16": half}
    for dtype, peak in zip(("f8_e4m3", "i8"), eight, strict=True):
        if peak is not None:
            peaks[dtype] = peak
    return Card(key, name, gib, gbps, peaks, source, aliases)


# Where the figures of a card (by the start of its key) were checked: public copies of the vendors'
# sheets and databases that quote them.
LOOKED_UP: Mapping[str, str] = {
    "rtx30": "tomshardware.com, cpu-gpu.alldbin.com, hardware.ts of huggingface.js",
    "rtx40": "fpsbench.com, cpu-gpu.alldbin.com, hardware.ts of huggingface.js",
    "rtx50": "tweaktown.com (launch table), cputronic.com (RTX 5060 Ti)",
    "rtxa6000": "huggingface.co/datasets/ohdoking/gpu_spec",
    "rtx6000ada": "huggingface.co/datasets/ohdoking/gpu_spec",
    "v100": "huggingface.co/RajBhope/gpu-runtime-predictor",
    "t4": "huggingface.co/RajBhope/gpu-runtime-predictor",
    "a10": "sysrqmts.com, hardware.ts of huggingface.js",
    "a40": "ecer.com",
    "a100": "sysrqmts.com; the 80 GB models' bandwidth in several public tables",
    "l4": "hmc-tech.com, hardware.ts of huggingface.js",
    "l40s": "mullet.se, hmc-tech.com",
    "h100": "glennklockwood.com, hmc-tech.com",
    "h200": "glennklockwood.com, itkb.uw.cz",
    "b200": "glennklockwood.com, docs.vultr.com",
    "mi2": "zexron.com, hardware.ts of huggingface.js",
    "mi300x": "docs.vultr.com, jaredwatkins.com",
    "jetson-agx": "public copies of data sheet DS-10662",
    "jetson-orin-nano": "brojogopalsapui.com",
    "m": "goodnewsapodcast.com (M2 to M4), llmcheck.net (M1 to M4)",
}


def looked_up(key: str) -> str:
    """Where the card's figures were checked. A card that was not is a ValueError."""
    return LOOKED_UP[max((k for k in LOOKED_UP if key.startswith(k)), key=len)]


CARDS: tuple[Card, ...] = (
    _geforce("rtx3060", "RTX 3060", 12, 360, 3584, 1.777, "rtx3060-12gb", "3060"),
    _geforce("rtx3060ti", "RTX 3060 Ti", 8, 448, 4864, 1.665, "3060ti"),
    _geforce("rtx3070", "RTX 3070", 8, 448, 5888, 1.725, "3070"),
    _geforce("rtx3080", "RTX 3080 10 GB", 10, 760, 8704, 1.71, "rtx3080-10gb", "3080"),
    _geforce("rtx3080ti", "RTX 3080 Ti", 12, 912, 10240, 1.665, "3080ti"),
    _geforce("rtx3090", "RTX 3090", 24, 936, 10496, 1.695, "3090"),
    _geforce("rtx3090ti", "RTX 3090 Ti", 24, 1008, 10752, 1.86, "3090ti"),
    _geforce("rtx4060", "RTX 4060", 8, 272, 3072, 2.46, "4060"),
    _geforce("rtx4060ti", "RTX 4060 Ti 8 GB", 8, 288, 4352, 2.535, "rtx4060ti-8gb", "4060ti"),
    _geforce("rtx4060ti-16gb", "RTX 4060 Ti 16 GB", 16, 288, 4352, 2.535),
    _geforce("rtx4070", "RTX 4070", 12, 504, 5888, 2.475, "4070"),
    _geforce("rtx4070super", "RTX 4070 SUPER", 12, 504, 7168, 2.475, "4070super"),
    _geforce("rtx4070ti", "RTX 4070 Ti", 12, 504, 7680, 2.61, "4070ti"),
    _geforce("rtx4070tisuper", "RTX 4070 Ti SUPER", 16, 672, 8448, 2.61, "4070tisuper"),
    _geforce("rtx4080", "RTX 4080", 16, 716.8, 9728, 2.505, "4080"),
    _geforce("rtx4080super", "RTX 4080 SUPER", 16, 736, 10240, 2.55, "4080super"),
    _geforce("rtx4090", "RTX 4090", 24, 1008, 16384, 2.52, "4090"),
    _geforce("rtx5060ti-16gb", "RTX 5060 Ti 16 GB", 16, 448, 4608, 2.572, "rtx5060ti", "5060ti"),
    _geforce("rtx5070", "RTX 5070", 12, 672, 6144, 2.512, "5070"),
    _geforce("rtx5070ti", "RTX 5070 Ti", 16, 896, 8960, 2.452, "5070ti"),
    _geforce("rtx5080", "RTX 5080", 16, 960, 10752, 2.617, "5080"),
    _geforce("rtx5090", "RTX 5090", 32, 1792, 21760, 2.407, "5090"),
    _datacenter(
        "rtxa6000", "RTX A6000", 48, 768, 38.7, 154.8, (None, 309.7),
        "NVIDIA Ampere GA102 whitepaper", "a6000",
    ),
    _datacenter(
        "rtx6000ada", "RTX 6000 Ada", 48, 960, 91.1, 364.2, (728.5, 728.5),
        "NVIDIA RTX 6000 Ada data sheet", "6000ada", "rtx6000adageneration",
    ),
    _datacenter(
        "v100-16gb", "V100 SXM2 16 GB", 16, 900, 15.7, 125, (None, None),
        "NVIDIA V100 data sheet", "v100sxm216gb",
    ),
    _datacenter(
        "v100-32gb", "V100 SXM2 32 GB", 32, 900, 15.7, 125, (None, None),
        "NVIDIA V100 data sheet", "v100", "v100sxm232gb",
    ),
    _datacenter(
        "t4", "T4", 16, 320, 8.1, 65, (None, 130), "NVIDIA T4 data sheet",
    ),
    _datacenter(
        "a10", "A10", 24, 600, 31.2, 125, (None, 250), "NVIDIA A10 data sheet",
    ),
    _datacenter(
        "a40", "A40", 48, 696, 37.4, 149.7, (None, 299.3), "NVIDIA A40 data sheet",
    ),
    _datacenter(
        "a100-40gb", "A100 40 GB", 40, 1555, 19.5, 312, (None, 624),
        "NVIDIA A100 data sheet", "a100sxm440gb", "a100pcie40gb",
    ),
    _datacenter(
        "a100-80gb", "A100 SXM 80 GB", 80, 2039, 19.5, 312, (None, 624),
        "NVIDIA A100 data sheet", "a100", "a100sxm", "a100sxm480gb",
    ),
    _datacenter(
        "a100-pcie-80gb", "A100 PCIe 80 GB", 80, 1935, 19.5, 312, (None, 624),
        "NVIDIA A100 data sheet", "a100pcie", "a10080gbpcie",
    ),
    _datacenter(
        "l4", "L4", 24, 300, 30.3, 121, (242.5, 242.5), "NVIDIA L4 data sheet",
    ),
    _datacenter(
        "l40s", "L40S", 48, 864, 91.6, 366, (733, 733), "NVIDIA L40S data sheet",
    ),
    _datacenter(
        "h100-sxm", "H100 SXM", 80, 3350, 67, 989.5, (1979, 1979),
        "NVIDIA H100 data sheet", "h100", "h100-80gb", "h100sxm5", "h10080gbhbm3",
    ),
    _datacenter(
        "h100-pcie", "H100 PCIe", 80, 2039, 51.2, 756.5, (1513, 1513),
        "NVIDIA H100 PCIe data sheet",
    ),
    _datacenter(
        "h200", "H200 SXM", 141, 4800, 67, 989.5, (1979, 1979),
        "NVIDIA H200 data sheet", "h200sxm",
    ),
    _datacenter(
        "b200", "B200 (HGX)", 180, 8000, 80, 2250, (4500, 4500),
        "NVIDIA HGX B200 data sheet", "b200hgx",
    ),
    _datacenter(
        "mi210", "MI210", 64, 1638, 45.3, 181, (None, 181), "AMD Instinct MI210 data sheet",
    ),
    _datacenter(
        "mi250", "MI250 (one of its two dies)", 64, 1638, 45.3, 181, (None, 181),
        "AMD Instinct MI250 data sheet, halved: the card is two devices of 64 GB",
    ),
    _datacenter(
        "mi300x", "MI300X", 192, 5300, 163.4, 1307.4, (2614.9, 2614.9),
        "AMD Instinct MI300X data sheet",
    ),
    Card(
        "jetson-agx-orin-64gb", "Jetson AGX Orin 64 GB", 64, 204.8, {},
        "NVIDIA Jetson AGX Orin data sheet", ("jetson-agx-orin", "agxorin"), True,
    ),
    Card(
        "jetson-agx-orin-32gb", "Jetson AGX Orin 32 GB", 32, 204.8, {},
        "NVIDIA Jetson AGX Orin data sheet", (), True,
    ),
    Card(
        "jetson-orin-nano-8gb", "Jetson Orin Nano 8 GB (Super)", 8, 102, {},
        "NVIDIA Jetson Orin Nano Super data sheet",
        ("jetson-orin-nano", "orinnano"), True,
    ),
)  # fmt: skip

# Where a chip comes in two bandwidths (M3 Max, M4 Max) the memory size tells which it is; sizes
# sold with both are listed under the lower one.
UNIFIED: tuple[Unified, ...] = (
    Unified("m1", "M1", 68.25, (8, 16)),
    Unified("m1-pro", "M1 Pro", 204.8, (16, 32)),
    Unified("m1-max", "M1 Max", 409.6, (32, 64)),
    Unified("m1-ultra", "M1 Ultra", 819.2, (64, 128)),
    Unified("m2", "M2", 102.4, (8, 16, 24)),
    Unified("m2-pro", "M2 Pro", 204.8, (16, 32)),
    Unified("m2-max", "M2 Max", 409.6, (32, 64, 96)),
    Unified("m2-ultra", "M2 Ultra", 819.2, (64, 128, 192)),
    Unified("m3", "M3", 102.4, (8, 16, 24)),
    Unified("m3-pro", "M3 Pro", 153.6, (18, 36)),
    Unified("m3-max", "M3 Max (14-core)", 307.2, (36, 96)),
    Unified("m3-max", "M3 Max (16-core)", 409.6, (48, 64, 128)),
    Unified("m3-ultra", "M3 Ultra", 819.2, (96, 256, 512)),
    Unified("m4", "M4", 120, (16, 24, 32)),
    Unified("m4-pro", "M4 Pro", 273, (24, 48, 64)),
    Unified("m4-max", "M4 Max (14-core)", 410, (36,)),
    Unified("m4-max", "M4 Max (16-core)", 546, (48, 64, 128)),
)
