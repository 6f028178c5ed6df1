"""The real demo model, teacher-forced over 512 tokens of real text, against transformers on the
same dequantised weights; and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from gateup.engine import loading, model
from gateup.engine.cache import KVCache
from gateup.engine.generate import Engine
from gateup.engine.loading import Decoded, load
from gateup.engine.model import TorchDecoder
from gateup.engine.tokenizer import load_tokenizer
from gateup.files.checkpoint import open_model
from gateup.ops.act_and_mul import act_and_mul_split
from gateup.ops.packed import PackedWeight, linears, pack
from tests.engine.models import hub_state

TOKENS = 512
LICENSE = Path(__file__).parents[2] / "LICENSE"


@pytest.fixture(scope="module")
def exact(smollm2_gguf: Path) -> Decoded:
    """The weights in float32, multiplied in float32."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "pack", lambda *args, **_: pack(*args, native=False))
        return load(open_model(smollm2_gguf), TOKENS)


@pytest.fixture(scope="module")
def ids(smollm2_gguf: Path) -> Tensor:
    text = " ".join(LICENSE.read_text(encoding="utf-8").split())
    return torch.tensor(load_tokenizer(open_model(smollm2_gguf)).encode(text)[:TOKENS])


@pytest.fixture(scope="module")
def reference(exact: Decoded, ids: Tensor) -> Tensor:
    """transformers' logits [T, V] on the dequantised weights."""
    layers = exact.config.layers
    first = layers[0]
    config = LlamaConfig(
        vocab_size=exact.config.vocab_size,
        hidden_size=exact.config.hidden_size,
        intermediate_size=first.width,
        num_hidden_layers=len(layers),
        num_attention_heads=first.num_heads,
        num_key_value_heads=first.num_kv_heads,
        rms_norm_eps=exact.config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        theirs = LlamaForCausalLM(config).eval()
    theirs.load_state_dict(hub_state(exact.weights), strict=False, assign=True)
    theirs.tie_weights()
    theirs.model.rotary_emb = type(theirs.model.rotary_emb)(config)
    with torch.no_grad():
        return theirs(ids[None]).logits[0]


def logits_of(decoded: Decoded, ids: Tensor) -> Tensor:
    cache = KVCache(decoded.config, TOKENS, 1, torch.float32)
    return TorchDecoder(decoded.config, decoded.weights).forward(ids, cache, every=True)[0]


def test_float32_is_transformers(exact: Decoded, ids: Tensor, reference: Tensor) -> None:
    """Rounding of float32 sums alone: 30 layers of 2^-24 at the size of the largest logit."""
    ours = logits_of(exact, ids)
    assert float((ours - reference).norm() / reference.norm()) < 1e-4
    assert bool((ours.argmax(-1) == reference.argmax(-1)).all())


def _rounded(x: Tensor) -> Tensor:
    """x in 8 bits by blocks of 32, as every engine on GGUF blocks rounds its activations."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    step = blocks.abs().amax(-1, keepdim=True) / 127
    return torch.where(step > 0, (blocks / step).round() * step, blocks).reshape(x.shape)


def plain_int8(decoded: Decoded, ids: Tensor) -> Tensor:
    """Logits with float32 products of activations so rounded: what 8 bits cost by themselves."""

    def many(x: Tensor, weights: Sequence[PackedWeight], biases: Any = None) -> list[Tensor]:
        return linears(_rounded(x), weights, biases)

    def gated(x: Tensor, gate: PackedWeight, up: PackedWeight, down: PackedWeight, act: str) -> Any:
        return many(act_and_mul_split(*many(x, [gate, up]), act), [down])[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "linears", many)
        patch.setattr(model, "linear", lambda x, w, b=None: many(x, [w], [b])[0])
        patch.setattr(model, "gated_mlp", gated)
        return logits_of(decoded, ids)


def test_the_kernels_err_as_8_bits_do(
    exact: Decoded, ids: Tensor, reference: Tensor, smollm2_gguf: Path
) -> None:
    """Where the likeliest token differs, the two likeliest are closer than 8-bit activations move
    a logit there; and over the whole text the error is no larger than theirs."""
    native = load(open_model(smollm2_gguf), TOKENS)
    if not native.weights.head.native:
        pytest.skip("the kernels are not built: the weights are the float32 ones")
    ours, plain = logits_of(native, ids), plain_int8(exact, ids)
    # Rounding carries through 30 layers: with activations moved by 1e-3 before rounding, the
    # plain error of one text spreads by up to 9%.
    assert float((ours - reference).norm()) <= 1.15 * float((plain - reference).norm())
    best = reference.topk(2).values
    gap = best[:, 0] - best[:, 1]
    moved = (plain - reference).abs().amax(-1)
    other = ours.argmax(-1) != reference.argmax(-1)
    assert bool((gap[other] < moved[other]).all())
    differs = plain.argmax(-1) != reference.argmax(-1)
    assert int(other.sum()) <= 2 * int(differs.sum())


def test_the_capital_of_france(exact: Decoded, smollm2_gguf: Path) -> None:
    """In float32. The first token's rival is 0.08 below it, less than 8-bit activations move it."""
    checkpoint = open_model(smollm2_gguf)
    decoder = TorchDecoder(exact.config, exact.weights)
    engine = Engine(checkpoint, decoder, load_tokenizer(checkpoint), TOKENS)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    stream = engine.stream(question, max_tokens=20)
    assert "".join(stream) == "The capital of France is Paris."
    assert stream.reason == "end"
