"""MoE: transformers' blocks with copied weights, family by family."""

from __future__ import annotations

import functools

import pytest
import torch
import transformers as tf
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP
from transformers.models.llama4.modeling_llama4 import Llama4TextMoe
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from gateup.errors import UsageError
from gateup.model.layout import GateUpLayout
from gateup.model.spec import GatedMLPSpec, MoESpec
from gateup.nn import MoE
from gateup.ops.options import MLPOptions
from gateup.ops.routing import Routing, routing_for
from tests.numerics import assert_as_good

H, WIDTH, E, TOKENS = 32, 48, 8, (2, 15)
BASE = {"hidden_size": H, "num_attention_heads": 4, "num_key_value_heads": 2}
EXPERT = GatedMLPSpec(WIDTH)
GPT_OSS = GatedMLPSpec(
    WIDTH, "gpt_oss", bias=True, layout=GateUpLayout("interleaved", orientation="in_out")
)
LLAMA4 = GatedMLPSpec(WIDTH, layout=GateUpLayout("concat", orientation="in_out"))
# family: block, config, our spec
BLOCKS = {
    "mixtral": (
        MixtralSparseMoeBlock,
        tf.MixtralConfig(**BASE, intermediate_size=WIDTH, num_local_experts=E),
        MoESpec(E, 2, EXPERT),
    ),
    "qwen2_moe": (
        Qwen2MoeSparseMoeBlock,
        tf.Qwen2MoeConfig(
            **BASE,
            moe_intermediate_size=WIDTH,
            shared_expert_intermediate_size=2 * WIDTH,
            num_experts=E,
            num_experts_per_tok=3,
        ),
        MoESpec(E, 3, EXPERT, shared=GatedMLPSpec(2 * WIDTH), shared_gate=True),
    ),
    "qwen3_moe": (
        Qwen3MoeSparseMoeBlock,
        tf.Qwen3MoeConfig(
            **BASE,
            moe_intermediate_size=WIDTH,
            num_experts=E,
            num_experts_per_tok=3,
            norm_topk_prob=True,
        ),
        MoESpec(E, 3, EXPERT),
    ),
    "olmoe": (
        OlmoeSparseMoeBlock,
        tf.OlmoeConfig(**BASE, intermediate_size=WIDTH, num_experts=E, num_experts_per_tok=4),
        MoESpec(E, 4, EXPERT),
    ),
    "deepseek_v3": (
        DeepseekV3MoE,
        tf.DeepseekV3Config(
            hidden_size=H,
            moe_intermediate_size=WIDTH,
            n_routed_experts=E,
            num_experts_per_tok=3,
            n_group=4,
            topk_group=2,
            n_shared_experts=2,
        ),
        MoESpec(E, 3, EXPERT, shared=GatedMLPSpec(2 * WIDTH)),
    ),
    "gpt_oss": (
        GptOssMLP,
        tf.GptOssConfig(
            **BASE, intermediate_size=WIDTH, num_local_experts=E, num_experts_per_tok=3
        ),
        MoESpec(E, 3, GPT_OSS, router_bias=True),
    ),
    "llama4_text": (
        Llama4TextMoe,
        tf.Llama4TextConfig(
            **BASE, intermediate_size=WIDTH, num_local_experts=E, num_experts_per_tok=1
        ),
        MoESpec(E, 1, LLAMA4, shared=GatedMLPSpec(WIDTH)),
    ),
}
RENAMED = (("router.", "gate."), ("shared_experts.", "shared_expert."))


@pytest.fixture(autouse=True)
def _one_thread():
    was = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(was)


def our_name(name):
    for theirs, ours in RENAMED:
        name = ours + name.removeprefix(theirs) if name.startswith(theirs) else name
    return name


def stock_block(family, seed, implementation="grouped_mm"):
    """In bf16. The router picks out eight of x's elements, times a power of two: its logits are
    exact in every dtype, so that no rounding moves a token to another expert."""
    block_class, config, _ = BLOCKS[family]
    config._experts_implementation = implementation
    torch.manual_seed(seed)
    block = block_class(config)
    with torch.no_grad():
        for name, p in block.named_parameters():
            bias = name.endswith("bias")
            p.normal_(std=0.5 if bias else p.shape[-1] ** -0.5)
        for name, buffer in block.named_buffers():
            if "correction" in name:
                buffer.normal_()
        router = block.router if hasattr(block, "router") else block.gate
        router.weight.zero_()[:, :E] = torch.eye(E) * 2
        if getattr(router, "bias", None) is not None:
            router.bias.zero_()
    block = block.to(torch.bfloat16)
    if family == "deepseek_v3":
        router.e_score_correction_bias = router.e_score_correction_bias.float()
    return block


def our_block(family, stock, dtype=torch.bfloat16, **options):
    _, config, spec = BLOCKS[family]
    combine = options.pop("combine", "slots")
    routing = routing_for(family, config.to_dict())
    ours = MoE(H, spec, routing, options=MLPOptions(**options), combine=combine, dtype=dtype)
    ours.load_state_dict({our_name(n): t for n, t in stock.state_dict().items()})
    return ours


def run(block, x, grad):
    x = x.detach().clone().requires_grad_()
    # Not the leaf itself: autocast shares casts of leaves, and no model feeds one to its blocks.
    y = block(x.mul(1))
    y = (y[0] if isinstance(y, tuple) else y).view(x.shape)
    y.backward(grad)
    grads = {our_name(n): p.grad for n, p in block.named_parameters()}
    return {"y": y.detach(), "x": x.grad, **grads}


def tokens(seed):
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(*TOKENS, H, generator=g).bfloat16() for _ in range(2))


@pytest.mark.parametrize("implementation", ["grouped_mm", "eager"])
@pytest.mark.parametrize("save", ["all", "gate_up", "input"])
@pytest.mark.parametrize("family", [f for f in BLOCKS if f != "llama4_text"])
def test_bits_of_transformers(family, save, implementation):
    stock = stock_block(family, 0, implementation)
    combine = "slots" if implementation == "grouped_mm" else "experts"
    ours = our_block(family, stock, save=save, combine=combine)
    theirs, found = (run(b, *tokens(0)) for b in (stock, ours))
    assert theirs.keys() == found.keys()
    for name, value in theirs.items():
        if name == "x" and family == "qwen2_moe" and implementation == "eager":
            # The loop's experts are added one by one to the shared expert's gate's gradient.
            assert (found[name] - value).norm() < 2**-8 * value.norm()
        else:
            assert torch.equal(found[name], value), name


@functools.cache
def exact(family, seed):
    """transformers' own block in float64, by its eager loop."""
    stock = stock_block(family, seed, "eager").double()
    x, grad = tokens(seed)
    return run(stock, x.double(), grad.double())


@functools.cache
def plain(family, seed):
    return run(stock_block(family, seed), *tokens(seed))


@pytest.mark.parametrize("tile", [None, 3])
@pytest.mark.parametrize("family", BLOCKS)
def test_wide_is_as_good_as_transformers(family, tile):
    def fast(seed):
        ours = our_block(
            family, stock_block(family, seed), rounding="wide", save="input", tile=tile
        )
        return run(ours, *tokens(seed))

    assert_as_good(fast, lambda s: plain(family, s), lambda s: exact(family, s))


@pytest.mark.parametrize("family", BLOCKS)
def test_routing_choices_are_those_of_transformers(family):
    stock = stock_block(family, 0)
    ours = our_block(family, stock)
    x = tokens(0)[0]
    router = stock.router if hasattr(stock, "router") else stock.gate
    rows = x.reshape(-1, H)
    found = ours.gate(rows)
    if family == "llama4_text":
        assert torch.equal(found[2][:, 0], router(rows)[1].argmax(-1))
    else:
        logits, weights, index = router(rows)
        assert torch.equal(found[0], logits)
        assert torch.equal(found[1], weights)
        assert torch.equal(found[2], index)


def relu(ours):
    ours.experts.act = "relu"


def no_shared(ours):
    ours.shared_expert = None


def swap(ours):
    ours.experts.layout = GateUpLayout("concat", "up_gate", stacked=True)


def zeros(ours):
    torch.nn.init.zeros_(ours.experts.down_proj)


def next_expert(ours):
    with torch.no_grad():
        ours.experts.down_proj.copy_(ours.experts.down_proj.roll(1, 0))


def unscaled(ours):
    from dataclasses import replace

    ours.gate.routing = replace(ours.gate.routing, norm_topk_prob=False)


@pytest.mark.parametrize("spoil", [relu, no_shared, swap, zeros, next_expert, unscaled])
def test_the_comparison_refuses_what_is_wrong(spoil):
    family = "deepseek_v3"

    def fast(seed):
        ours = our_block(family, stock_block(family, seed))
        spoil(ours)
        return {"y": run(ours, *tokens(seed))["y"]}

    def only_y(results):
        return {"y": results["y"]}

    with pytest.raises(AssertionError):
        assert_as_good(
            fast,
            lambda s: only_y(plain(family, s)),
            lambda s: only_y(exact(family, s)),
            seeds=range(2),
        )


def test_state_dict_is_that_of_transformers():
    for family in ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe"):
        stock = stock_block(family, 0)
        ours = our_block(family, stock)
        assert set(ours.state_dict()) == set(stock.state_dict())
        stock.load_state_dict(ours.state_dict())


def test_a_hook_on_the_router_sees_the_logits():
    ours = our_block("mixtral", stock_block("mixtral", 0))
    seen = []
    ours.gate.register_forward_hook(lambda m, args, out: seen.append(out[0].shape))
    ours(tokens(0)[0])
    assert seen == [(30, E)]


@pytest.mark.parametrize("shape", [(0, H), (2, 0, H), (H,), (5, H), (1, 2, 3, H)])
@pytest.mark.parametrize("family", BLOCKS)
def test_any_number_of_axes_and_no_tokens(family, shape):
    ours = our_block(family, stock_block(family, 0))
    x = torch.randn(shape).bfloat16().requires_grad_()
    y = ours(x)
    assert y.shape == shape
    y.sum().backward()
    assert x.grad.shape == shape
    assert all(p.grad is not None for p in ours.experts.parameters())


@pytest.mark.parametrize("implementation", ["grouped_mm", "eager"])
@pytest.mark.parametrize("family", [f for f in BLOCKS if f not in ("llama4_text", "gpt_oss")])
def test_bits_of_transformers_under_autocast(family, implementation):
    stock = stock_block(family, 0, implementation).float()
    combine = "slots" if implementation == "grouped_mm" else "experts"
    ours = our_block(family, stock, torch.float32, combine=combine)
    x, grad = (t.float() for t in tokens(0))
    with torch.autocast("cpu", torch.bfloat16):
        theirs, found = run(stock, x, grad), run(ours, x, grad)
    for name, value in theirs.items():
        if name == "x" and (family == "qwen2_moe" and implementation == "eager"):
            assert (found[name] - value).norm() < 2**-8 * value.norm()
        else:
            assert torch.equal(found[name], value), name


@pytest.mark.parametrize("family", [f for f in BLOCKS if f != "llama4_text"])
def test_wide_under_autocast_is_as_good_as_the_loop(family):
    """The loop of transformers runs its GEMMs in bf16 there; its grouped_mm runs in float32."""

    def under_autocast(block, seed):
        x, grad = (t.float() for t in tokens(seed))
        with torch.autocast("cpu", torch.bfloat16):
            return run(block, x, grad)

    def fast(seed):
        stock = stock_block(family, seed).float()
        ours = our_block(family, stock, torch.float32, rounding="wide", save="input")
        return under_autocast(ours, seed)

    assert_as_good(
        fast,
        lambda s: under_autocast(stock_block(family, s, "eager").float(), s),
        lambda s: exact(family, s),
    )


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v3"])
def test_compiles_whole_and_once_for_all_lengths(family):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    ours = our_block(family, stock_block(family, 0), save="input", tile=4)
    compiled = torch.compile(ours, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (3, 15, 40):
        x = torch.randn(2, length, H).bfloat16()
        assert torch.equal(compiled(x), ours(x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_starts_on_meta_and_in_any_dtype():
    spec = MoESpec(E, 2, GPT_OSS, shared=EXPERT, shared_gate=True, router_bias=True)
    made = MoE(H, spec, Routing(2), device="meta", dtype=torch.bfloat16)
    assert all(p.is_meta and p.dtype == torch.bfloat16 for p in made.parameters())
    shapes = {n: tuple(p.shape) for n, p in made.named_parameters()}
    assert shapes["experts.gate_up_proj"] == (E, H, 2 * WIDTH)
    assert shapes["experts.down_proj"] == (E, WIDTH, H)
    assert shapes["experts.gate_up_proj_bias"] == (E, 2 * WIDTH)
    assert shapes["shared_expert_gate.weight"] == (1, H)
    fresh = MoE(H, MoESpec(E, 2, EXPERT), Routing(2))
    assert fresh.experts.gate_up_proj.abs().max() <= H**-0.5
    assert fresh.experts.down_proj.std() > 0


def test_bad_arguments_are_refused():
    with pytest.raises(UsageError, match="the spec's top_k is 2, the routing's 3"):
        MoE(H, MoESpec(E, 2, EXPERT), Routing(3))
    with pytest.raises(UsageError, match="top_k is 9, num_experts 8"):
        MoE(H, MoESpec(E, 9, EXPERT), Routing(9))
    with pytest.raises(UsageError, match="activation 'swish' is not known"):
        MoE(H, MoESpec(E, 2, GatedMLPSpec(WIDTH, "swish")), Routing(2))
    made = MoE(H, MoESpec(E, 2, EXPERT), Routing(2))
    with pytest.raises(UsageError, match=r"x has shape \(3, 31\)"):
        made(torch.randn(3, H - 1))
    assert "8 experts, act=silu" in repr(made)


def test_what_could_not_run_is_refused_where_it_is_made():
    for wrong, words in (
        ({"options": MLPOptions(budget=1)}, "budget is 1 bytes, one token needs"),
        ({"options": "input"}, "options is of type str"),
        ({"combine": "all"}, "combine is 'all'"),
        ({"dtype": torch.int8}, "dtype is torch.int8"),
    ):
        with pytest.raises(UsageError, match=words):
            MoE(H, MoESpec(E, 2, EXPERT), Routing(2), **wrong)
