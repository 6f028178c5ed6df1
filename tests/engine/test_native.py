"""The C++ decoder against the torch decoder on the same packed weights, and with itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from gateup.engine import native as engine
from gateup.engine.cache import KVCache
from gateup.engine.config import DecoderConfig, LayerConfig, MoEConfig, RopeConfig
from gateup.engine.decoder import make_decoder
from gateup.engine.model import TorchDecoder
from gateup.engine.weights import LayerWeights, MLPWeights, MoEWeights, Weights
from gateup.errors import UsageError
from gateup.ops import native
from gateup.ops.packed import PackedWeight, dequantise, pack

pytestmark = pytest.mark.skipif(not native.status().available, reason="no C++ kernels")

H, V, PAST, NEW = 64, 96, 261, 40  # two chunks of 128 keys and a bit; then some more tokens
ROPE = RopeConfig(tuple(10000.0 ** (-2 * j / 32) for j in range(16)))
PARTIAL = RopeConfig(tuple(500.0 ** (-2 * j / 16) for j in range(8)), 1.2)
PLAIN = LayerConfig(6, 2, 32, ROPE, None, False, 0.2, None, False, "silu", 96)
GEMMA = LayerConfig(4, 4, 32, PARTIAL, 150, True, 0.2, 3.0, True, "gelu_tanh", 96)
MOE = replace(PLAIN, moe=MoEConfig(5, 2, True), num_heads=8, num_kv_heads=1)
# name -> (layers, what the config has besides)
MODELS = {
    "dense, rope in every other layer": ((PLAIN, replace(PLAIN, rope=None, window=7)), {}),
    "gemma": (
        (GEMMA, replace(GEMMA, window=None)),
        {"embedding_scale": 8.0, "residual_scale": 0.7, "logit_scale": 0.5, "logit_softcap": 2.0},
    ),
    "experts": ((MOE, replace(MOE, moe=MoEConfig(4, 3, False))), {}),
}


@pytest.fixture(params=native.extension().isas() if native.status().available else [])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    module = native.extension()
    before = module.isa()
    module.use_isa(request.param)
    yield request.param
    module.use_isa(before)


class _Random:
    """Weights drawn one after the other; matrices as Q8_0 blocks of int8 numbers and a scale."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def vector(self, n: int, mean: float) -> torch.Tensor:
        return mean + 0.2 * torch.randn(n, generator=self.generator)

    def matrix(self, n: int, k: int) -> PackedWeight:
        scale = torch.full((n, k // 32, 1), 1 / (73 * math.sqrt(k)), dtype=torch.float16)
        numbers = torch.randint(
            -127, 128, (n, k // 32, 32), generator=self.generator, dtype=torch.int8
        )
        blocks = torch.cat((scale.view(torch.uint8), numbers.view(torch.uint8)), -1)
        return pack("q8_0", blocks, n, k, native=True)

    def mlp(self, x: LayerConfig) -> MLPWeights:
        matrices = (self.matrix(x.width, H), self.matrix(x.width, H), self.matrix(H, x.width))
        return MLPWeights(*matrices)

    def layer(self, x: LayerConfig) -> LayerWeights:
        q, k = x.num_heads * x.head_dim, x.num_kv_heads * x.head_dim
        norms = {"q_norm": x.head_dim, "k_norm": x.head_dim} if x.qk_norm else {}
        if x.post_norm:
            norms |= {"attention_post_norm": H, "mlp_post_norm": H}
        optional = {name: self.vector(n, 1.0) for name, n in norms.items()}
        sizes = {"q_bias": q, "k_bias": k, "v_bias": k, "o_bias": H}
        optional |= {name: self.vector(n, 0.0) for name, n in sizes.items()}
        mlp: MLPWeights | MoEWeights = self.mlp(x)
        if x.moe is not None:
            experts = tuple(self.mlp(x) for _ in range(x.moe.num_experts))
            router = torch.randn(x.moe.num_experts, H, generator=self.generator) / 8
            mlp = MoEWeights(router, experts)
        return LayerWeights(
            input_norm=self.vector(H, 1.0),
            q=self.matrix(q, H),
            k=self.matrix(k, H),
            v=self.matrix(k, H),
            o=self.matrix(H, q),
            mlp_norm=self.vector(H, 1.0),
            mlp=mlp,
            **optional,
        )


def model(name: str) -> tuple[DecoderConfig, Weights]:
    layers, changes = MODELS[name]
    config = DecoderConfig(name, H, V, layers, 512, 1e-5, **changes)
    draw = _Random()
    drawn = tuple(draw.layer(x) for x in layers)
    return config, Weights(draw.matrix(V, H), drawn, draw.vector(H, 1.0), draw.matrix(V, H))


def exact(weights: Weights) -> Weights:
    """The same weights as float32 numbers, which torch multiplies as they are."""

    def of(w: PackedWeight) -> PackedWeight:
        return pack("f32", dequantise(w).view(torch.uint8), w.n, w.k, native=False)

    def of_mlp(w: MLPWeights) -> MLPWeights:
        return replace(w, gate=of(w.gate), up=of(w.up), down=of(w.down))

    layers = []
    for w in weights.layers:
        whole = isinstance(w.mlp, MLPWeights)
        mlp = of_mlp(w.mlp) if whole else replace(w.mlp, experts=tuple(map(of_mlp, w.mlp.experts)))
        layers.append(replace(w, q=of(w.q), k=of(w.k), v=of(w.v), o=of(w.o), mlp=mlp))
    return Weights(of(weights.embed), tuple(layers), weights.norm, of(weights.head))


def tokens(n: int, batch: int = 1, seed: int = 3) -> torch.Tensor:
    return torch.randint(0, V, (batch, n), generator=torch.Generator().manual_seed(seed))


def error_of(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("name", MODELS)
def test_logits_err_no_more_than_torch_with_the_same_kernels(name: str, isa: str) -> None:
    """Both round x to int8 in products; a last bit before that decides which way a number goes, so
    the two differ by as much as either differs from float32. A wrong formula does by far more."""
    config, weights = model(name)
    ids = tokens(PAST + NEW, 2)
    true = TorchDecoder(config, exact(weights))
    wanted = true.forward(ids, true.new_cache(PAST + NEW, 2, torch.float32), every=True)
    logits = {}
    for decoder in (TorchDecoder(config, weights), engine.NativeDecoder(config, weights)):
        cache = decoder.new_cache(PAST + NEW, 2, torch.float32)
        logits[decoder.name] = decoder.forward(ids, cache, every=True)
    error, theirs = error_of(logits["native"], wanted), error_of(logits["torch"], wanted)
    assert error <= 1.3 * theirs, (error, theirs)
    assert theirs < 0.1


@pytest.mark.parametrize("name", MODELS)
def test_bits_do_not_depend_on_how_tokens_arrive(name: str, isa: str) -> None:
    """Whole, in pieces, one by one, in a batch of other company, on one thread or two."""
    config, weights = model(name)
    decoder = engine.NativeDecoder(config, weights)
    ids = tokens(PAST + NEW)
    whole = decoder.forward(ids, decoder.new_cache(PAST + NEW), every=True)
    cache = decoder.new_cache(PAST + NEW + 16, 3)
    pieces = [
        decoder.forward(part, cache, [2], every=True)
        for part in ids.split([1, 130, PAST - 131, 1, 1, NEW - 2], 1)
    ]
    assert torch.equal(torch.cat(pieces, 1), whole)
    cache.truncate(2, PAST)
    company = torch.cat((tokens(NEW, 2, seed=4), ids[:, PAST:]))
    assert torch.equal(decoder.forward(company, cache, every=True)[2], whole[0, PAST:])
    cache.truncate(2, PAST)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3 - min(threads, 2))
        assert torch.equal(decoder.forward(ids[:, PAST:], cache, [2])[0], whole[0, -1])
    finally:
        torch.set_num_threads(threads)


def test_a_float16_cache_errs_by_float16() -> None:
    config, weights = model("dense, rope in every other layer")
    decoder = engine.NativeDecoder(config, weights)
    ids = tokens(PAST)
    caches = [decoder.new_cache(PAST, dtype=d) for d in (torch.float32, torch.float16)]
    exact_logits, rounded = (decoder.forward(ids, c, every=True) for c in caches)
    assert 1e-6 < error_of(rounded, exact_logits) < 2e-2


def test_a_head_dim_of_no_whole_panel() -> None:
    """24 numbers a head lie in panels of 32; the rest of memory may hold anything."""
    layer = replace(PLAIN, head_dim=24, num_heads=4, num_kv_heads=2, scale=0.3, rope=None)
    config = DecoderConfig("t", H, V, (layer,), 512, 1e-5)
    draw = _Random()
    weights = Weights(
        draw.matrix(V, H), (draw.layer(layer),), draw.vector(H, 1.0), draw.matrix(V, H)
    )
    decoder, reference = engine.NativeDecoder(config, weights), TorchDecoder(config, weights)
    ids = tokens(20)
    cache = decoder.new_cache(21)
    for memory in (*cache.keys, *cache.values):
        memory.fill_(float("nan"))
    wanted = reference.forward(ids, KVCache(config, 20, 1, torch.float32))
    assert error_of(decoder.forward(ids, cache), wanted) < 2e-2


def test_what_the_decoder_refuses() -> None:
    config, weights = model("dense, rope in every other layer")
    assert make_decoder(config, weights).name == "native"
    raw = exact(weights)
    reason = engine.why_not(config, raw)
    assert reason == "embed is held as it is in the file (f32), not in the kernels' order"
    assert make_decoder(config, raw).name == "torch"
    with pytest.raises(UsageError, match="the C\\+\\+ decoder cannot run this model: embed is"):
        engine.NativeDecoder(config, raw)
    decoder = engine.NativeDecoder(config, weights)
    cache = decoder.new_cache(8)
    with pytest.raises(UsageError, match="9 tokens do not fit into a context of 8"):
        decoder.forward(tokens(9), cache)
    with pytest.raises(UsageError, match="token 96 is outside the model's vocabulary of 96"):
        decoder.forward(torch.tensor([[96]]), cache)
    assert cache.lengths == [0]
