"""What --device takes, and what this machine is found to have."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gateup.account import machine
from gateup.account.machine import GIB, GPUS, Device, parse_device, parse_nvidia_smi, probe
from gateup.errors import UsageError

SIZES = {
    "24GB": 24 * 10**9,
    "24 gb": 24 * 10**9,
    "24GiB": 24 * GIB,
    "8GB": 8 * 10**9,
    "80G": 80 * 10**9,
    "12.5GB": 12_500_000_000,
    "500MiB": 500 << 20,
    "1TB": 10**12,
    "25769803776B": 24 * GIB,
}


@pytest.mark.parametrize("text", SIZES)
def test_sizes(text: str) -> None:
    device = parse_device(text)
    assert (device.memory, device.count, device.kind) == (SIZES[text], 1, "gpu")
    assert device.bandwidth is None
    assert not device.flops


@pytest.mark.parametrize(
    ("text", "name", "gib", "count"),
    [
        ("rtx4090", "RTX 4090", 24, 1),
        ("RTX 4090", "RTX 4090", 24, 1),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", 24, 1),
        ("4090", "RTX 4090", 24, 1),
        ("2xh100", "H100 SXM", 80, 2),
        ("8 × a100-40gb", "A100 40 GB", 40, 8),
        ("h100-80gb", "H100 SXM", 80, 1),
        ("H100 80GB HBM3", "H100 SXM", 80, 1),
        ("rtx3060-12gb", "RTX 3060", 12, 1),
        ("rtx4090-24gb", "RTX 4090", 24, 1),
        ("a100", "A100 SXM 80 GB", 80, 1),
        ("m4-max-64gb", "M4 Max (16-core) 64 GB", 64, 1),
    ],
)
def test_names(text: str, name: str, gib: int, count: int) -> None:
    device = parse_device(text)
    assert (device.name, device.memory, device.count) == (name, gib * GIB, count)
    assert device.bandwidth
    assert device.source


def test_several_of_a_size() -> None:
    device = parse_device("2x24GB")
    assert (device.memory, device.count, device.label) == (24 * 10**9, 2, "2x 24 GB")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("0GB", "0 bytes of memory"),
        ("-8GB", "-8,000,000,000 bytes of memory"),
        ("1000000TB", "1,000,000,000,000,000,000 bytes of memory"),
        ("0.5KB", "500 bytes of memory"),
        ("24", "no unit"),
        ("24QB", "unit 'qb' is not known"),
        ("0x24GB", "0 devices"),
        ("99999xh100", "99999 devices"),
        ("nan", "not a device gateup knows"),
        ("nanGB", "not a device gateup knows"),
        ("inf GB", "not a device gateup knows"),
        ("1e9GB", "not a device gateup knows"),
        ("", "not a device gateup knows"),
        ("h100-40gb", "not a device gateup knows"),
        ("9" * 400 + "GB", "not a device gateup knows"),
    ],
)
def test_refused(text: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_device(text)
    assert caught.value.what == f"--device {text}: {what}"
    assert caught.value.exit_code == 2


def test_the_error_names_what_is_near() -> None:
    with pytest.raises(UsageError) as caught:
        parse_device("rtx4091")
    assert "rtx4090" in str(caught.value.remedy)
    assert caught.value.expected == (
        "a size (24GB, 24GiB), a card (rtx4090, h100), several (2x24GB, 2xh100), or this"
    )
    with pytest.raises(UsageError) as caught:
        parse_device("m4-max")
    assert caught.value.remedy == (
        "nearest names: m4-max-36gb, m4-max-48gb, m4-max-64gb, m4-max-128gb"
    )


@pytest.mark.parametrize("key", GPUS)
def test_the_table_is_sound(key: str) -> None:
    """Each key finds its own card, and its figures are within what exists."""
    device = GPUS[key]
    assert parse_device(key) == device
    assert 4 * GIB <= device.memory <= 512 * GIB
    assert device.bandwidth is not None
    assert 50e9 < device.bandwidth <= 8e12
    assert device.source
    if device.flops:
        f = device.flops
        assert f["f32"] <= f["bf16"] <= f["f16"] > f["f32"]
        assert all(f["f16"] <= f[k] <= 4 * f["f16"] for k in ("i8", "f8_e4m3") if k in f)
    assert 0 < int(device.reserve().value) < device.memory / 2


# Anchors of the vendors' papers, dense: NVIDIA's Ada paper (RTX 4090), Blackwell paper (RTX 5090),
# GA102 paper (RTX 3090) and the H100 data sheet.
@pytest.mark.parametrize(
    ("key", "dtype", "tflops"),
    [
        ("rtx4090", "f32", 82.6),
        ("rtx4090", "bf16", 165.2),
        ("rtx4090", "f16", 330.3),
        ("rtx4090", "i8", 660.6),
        ("rtx5090", "f32", 104.8),
        ("rtx5090", "bf16", 209.5),
        ("rtx5090", "f16", 419.0),
        ("rtx3090", "bf16", 71.2),
        ("rtx3090", "i8", 284.6),
        ("h100-sxm", "bf16", 989.4),
        ("h100-sxm", "f8_e4m3", 1978.9),
        ("a100-80gb", "bf16", 312.0),
        ("mi300x", "f8_e4m3", 2614.9),
    ],
)
def test_peaks(key: str, dtype: str, tflops: float) -> None:
    assert GPUS[key].flops[dtype] / 1e12 == pytest.approx(tflops, rel=2e-3)


def test_no_fp8_before_ada() -> None:
    assert all("f8_e4m3" not in GPUS[k].flops for k in ("rtx3090", "a100-80gb", "t4", "v100-32gb"))


def test_reserve_is_a_stated_estimate() -> None:
    card = parse_device("24GiB")
    reserve = card.reserve("llama.cpp")
    assert (reserve.value, reserve.kind, reserve.unit) == (GIB // 2, "estimate", "B")
    assert reserve.numbers == "536,870,912 + 0"
    assert "CUDA context" in reserve.source
    assert card.capacity("llama.cpp") == 24 * GIB - GIB // 2
    assert card.capacity("transformers") < card.capacity("llama.cpp")
    assert card.capacity("vllm") < card.capacity("transformers")
    small = Device("small", 512 << 20)
    assert small.capacity("vllm") == 384 << 20  # never more than a quarter
    apple = parse_device("m1-16gb")  # Metal reports 10,922 MiB of 16 GiB
    assert apple.capacity("llama.cpp") >> 20 == 10922
    assert parse_device("m2-max-64gb").capacity("llama.cpp") == 48 * GIB
    ram = Device("ram", 16 * GIB, kind="cpu", in_use=3 * GIB)
    assert ram.capacity("llama.cpp") == 13 * GIB
    assert Device("full", GIB, kind="cpu", in_use=2 * GIB).capacity("llama.cpp") == 0


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal:       16384000 kB\nMemFree:         1000000 kB\nMemAvailable:    8192000 kB\n"


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_ask", lambda *command: "")
    monkeypatch.setattr("platform.system", lambda: "Linux")


@pytest.mark.usefixtures("no_gpu")
def test_probe_reads_meminfo(tmp_path: Path) -> None:
    here = probe(tree(tmp_path, {"proc/meminfo": MEMINFO}))
    assert (here.ram, here.available, here.gpus) == (16384000 * 1024, 8192000 * 1024, ())
    device = here.device
    assert (device.kind, device.memory, device.in_use) == ("cpu", here.ram, 8192000 * 1024)
    assert device.capacity("llama.cpp") == here.available
    assert here.cores >= 1


@pytest.mark.usefixtures("no_gpu")
def test_probe_obeys_cgroup_v2(tmp_path: Path) -> None:
    """The tightest limit above the process counts; page cache that can be dropped does not."""
    here = probe(
        tree(
            tmp_path,
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/pod/box\n",
                "sys/fs/cgroup/pod/memory.max": "4000000000\n",
                "sys/fs/cgroup/pod/memory.current": "1500000000\n",
                "sys/fs/cgroup/pod/memory.stat": "anon 1\ninactive_file 500000000\n",
                "sys/fs/cgroup/pod/box/memory.max": "max\n",
            },
        )
    )
    assert (here.ram, here.available) == (4_000_000_000, 3_000_000_000)


@pytest.mark.usefixtures("no_gpu")
def test_probe_obeys_cgroup_v1(tmp_path: Path) -> None:
    v1 = "sys/fs/cgroup/memory/"
    here = probe(
        tree(
            tmp_path,
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "5:cpu:/x\n4:memory:/x\n",
                v1 + "memory.limit_in_bytes": "9223372036854771712\n",
                v1 + "x/memory.limit_in_bytes": "2000000000\n",
                v1 + "x/memory.usage_in_bytes": "500000000\n",
            },
        )
    )
    assert (here.ram, here.available) == (2_000_000_000, 1_500_000_000)


@pytest.mark.usefixtures("no_gpu")
def test_probe_without_proc(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        probe(tmp_path)
    assert str(caught.value) == (
        "--device this: the size of this machine's memory is not known\n"
        f"  where: {tmp_path}/proc/meminfo\n"
        "  remedy: give it: --device 16GB"
    )


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("text", ["MemTotal: -5 kB\n", "MemTotal: many kB\n", "\x00\xff", ""])
def test_probe_of_damaged_meminfo(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError):
        probe(tree(tmp_path, {"proc/meminfo": text}))


def test_probe_of_the_real_machine() -> None:
    here = probe()
    assert 0 < here.available <= here.ram
    assert parse_device("this").count >= 1


SMI = "NVIDIA GeForce RTX 4090, 24564, 1024\nNVIDIA H100 80GB HBM3, 81559, 0\n"


def test_nvidia_smi() -> None:
    first, second = parse_nvidia_smi(SMI)
    assert (first.memory, first.in_use, first.bandwidth) == (24564 << 20, 1024 << 20, 1008e9)
    assert second.bandwidth == 3350e9
    assert second.source == f"probed: nvidia-smi; peaks: {GPUS['h100-sxm'].source}"
    unknown = parse_nvidia_smi("Card, of 2040, 1000, 7\n")[0]
    assert (unknown.name, unknown.memory, unknown.bandwidth) == ("Card, of 2040", 1000 << 20, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No devices were found",
        "X, [N/A], [N/A]",
        "a,b\n,,\n",
        "X, 0, 0",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
    ],
)
def test_nvidia_smi_without_figures(text: str) -> None:
    assert parse_nvidia_smi(text) == ()


def test_this_is_the_gpus_where_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"nvidia-smi": "A, 8000, 0\nB, 16000, 9000\n"}
    monkeypatch.setattr(machine, "_ask", lambda *command: answers.get(command[0], ""))
    monkeypatch.setattr("platform.system", lambda: "Linux")
    device = probe(tree(tmp_path, {"proc/meminfo": MEMINFO})).device
    assert (device.name, device.count, device.kind) == ("B", 2, "gpu")  # least free memory


def test_a_mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"hw.memsize": str(64 * GIB), "machdep.cpu.brand_string": "Apple M2 Max\n"}
    monkeypatch.setattr(machine, "_ask", lambda *command: answers.get(command[-1], ""))
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    device = probe(tmp_path).device
    assert (device.name, device.kind, device.bandwidth) == ("M2 Max 64 GB", "unified", 409.6e9)


def test_a_command_that_hangs_or_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*args: object, **kwargs: object) -> None:
        raise subprocess.TimeoutExpired("nvidia-smi", 5)

    assert machine._ask("no-such-command-anywhere") == ""
    assert machine._ask("false") == ""
    monkeypatch.setattr(subprocess, "run", hang)
    assert machine._ask("nvidia-smi") == ""


def test_every_source_says_where_it_was_looked_up() -> None:
    for key, device in GPUS.items():
        assert "looked up " in device.source, key


@pytest.mark.parametrize(("bits", "mt", "key"), [
    (128, 6400, "m2-8gb"), (256, 6400, "m1-pro-16gb"), (512, 6400, "m2-max-32gb"),
    (192, 6400, "m3-pro-18gb"), (384, 6400, "m3-max-36gb"), (1024, 6400, "m3-ultra-96gb"),
])  # fmt: skip
def test_unified_bandwidth_is_bus_times_rate(bits: int, mt: int, key: str) -> None:
    assert GPUS[key].bandwidth == pytest.approx(bits / 8 * mt * 1e6)


def test_no_bf16_tensor_cores_before_ampere() -> None:
    for key in ("v100-16gb", "v100-32gb", "t4"):
        flops = GPUS[key].flops
        assert flops["bf16"] == flops["f32"] < flops["f16"]
    assert GPUS["a10"].flops["bf16"] == GPUS["a10"].flops["f16"]
