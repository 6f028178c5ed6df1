"""Routing: the experts and weights that transformers' routers choose, bit for bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import transformers
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.llama4.modeling_llama4 import Llama4Router
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.olmoe.modeling_olmoe import OlmoeTopKRouter
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from gateup.errors import UsageError
from gateup.ops.routing import FAMILY_ROUTING, Routing, route, routing_for

T, H, E = 200, 32, 16
ROUTERS = {
    "mixtral": (MixtralTopKRouter, transformers.MixtralConfig, {"num_local_experts": E}),
    "qwen2_moe": (Qwen2MoeTopKRouter, transformers.Qwen2MoeConfig, {"num_experts": E}),
    "qwen3_moe": (Qwen3MoeTopKRouter, transformers.Qwen3MoeConfig, {"num_experts": E}),
    "olmoe": (OlmoeTopKRouter, transformers.OlmoeConfig, {"num_experts": E}),
    "gpt_oss": (GptOssTopKRouter, transformers.GptOssConfig, {"num_local_experts": E}),
    "deepseek_v3": (
        DeepseekV3TopkRouter,
        transformers.DeepseekV3Config,
        {"n_routed_experts": E, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4},
    ),
}
CHANGES = {
    "mixtral": [{}, {"num_experts_per_tok": 1}, {"num_experts_per_tok": E}],
    "qwen2_moe": [{}, {"norm_topk_prob": True}],
    "qwen3_moe": [{}, {"norm_topk_prob": True, "num_experts_per_tok": E}],
    "olmoe": [{}, {"norm_topk_prob": True}],
    "gpt_oss": [{}, {"num_experts_per_tok": 1}],
    "deepseek_v3": [
        {},
        {"norm_topk_prob": False},
        {"n_group": 1, "topk_group": 1},
        {"routed_scaling_factor": 1.0, "topk_group": 4},
    ],
}
CASES = [(family, change) for family, changes in CHANGES.items() for change in changes]


def draw(family, change, dtype, *, ties=False):
    """transformers' router, its config as a dictionary, and tokens."""
    cls, config_class, sizes = ROUTERS[family]
    config = config_class(hidden_size=H, **{**sizes, **change})
    router = cls(config).to(dtype)
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        weight = torch.randn(E, H, generator=g)
        if ties:  # four kinds of expert, four of each
            weight = weight[:4].repeat(4, 1)
        router.weight.copy_(weight * (0.3 if dtype == torch.float32 else 0.1))
        if family == "gpt_oss":
            router.bias.copy_(torch.zeros(E) if ties else torch.randn(E, generator=g))
        if family == "deepseek_v3":
            router.e_score_correction_bias = torch.randn(E, generator=g) * (not ties)
    return router, config.to_dict(), torch.randn(T, H, generator=g).to(dtype)


def ours(family, router, config, x):
    routing = routing_for(family, config)
    weight = router.weight
    if routing.float_logits:
        x, weight = x.float(), weight.float()
    logits = F.linear(x, weight, getattr(router, "bias", None))
    return route(logits, routing, getattr(router, "e_score_correction_bias", None))


@pytest.mark.parametrize("ties", [False, True], ids=["", "ties"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("family", "change"), CASES)
def test_choices_weights_and_gradients_of_transformers(family, change, dtype, ties):
    router, config, x = draw(family, change, dtype, ties=ties)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    _, weights, index = router(a)
    found = ours(family, router, config, b)
    assert torch.equal(found.experts, index)
    assert found.weights.dtype == weights.dtype
    assert torch.equal(found.weights, weights)
    grad = torch.randn(weights.shape, generator=torch.Generator().manual_seed(1)).to(weights.dtype)
    (da,) = torch.autograd.grad(weights, a, grad)
    (db,) = torch.autograd.grad(found.weights, b, grad)
    assert torch.equal(da, db)


def test_llama4_weighs_its_one_expert_by_a_sigmoid():
    config = transformers.Llama4TextConfig(
        hidden_size=H, num_local_experts=E, num_experts_per_tok=1
    )
    torch.manual_seed(0)
    router = Llama4Router(config)
    x = torch.randn(T, H, generator=torch.Generator().manual_seed(0))
    scores, logits = router(x)
    found = route(F.linear(x, router.weight), routing_for("llama4_text", config.to_dict()))
    # Of k logits and of all E: torch's vectors end elsewhere, and their last bit may differ.
    torch.testing.assert_close(scores.gather(1, found.experts), found.weights)
    assert torch.equal(found.experts[:, 0], logits.argmax(-1))


def test_groups_bound_the_choice():
    """Three experts of group 0 score best, but group 1 is the better group."""
    logits = torch.tensor([[3.0, -9.0, -9.0, -9.0, 2.0, 2.0, 1.0, 0.0]])
    routing = Routing(2, "sigmoid", n_group=2, topk_group=1)
    assert set(route(logits, routing).experts[0].tolist()) == {4, 5}
    free = Routing(2, "sigmoid")
    assert 0 in route(logits, free).experts[0].tolist()


def test_the_correction_moves_the_choice_and_not_the_weight():
    logits = torch.zeros(1, 4)
    correction = torch.tensor([0.0, 0.0, 5.0, 0.0])
    found = route(logits, Routing(1, "sigmoid"), correction)
    assert found.experts.tolist() == [[2]]
    assert found.weights.tolist() == [[0.5]]


def test_known_weights():
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.3, 0.4]]))

    def weights(**how):
        return route(logits, Routing(2, **how)).weights

    torch.testing.assert_close(weights(), torch.tensor([[0.4, 0.3]]))
    torch.testing.assert_close(weights(norm_topk_prob=True), torch.tensor([[4 / 7, 3 / 7]]))
    torch.testing.assert_close(weights(scores="topk_softmax"), torch.tensor([[4 / 7, 3 / 7]]))
    torch.testing.assert_close(weights(routed_scaling_factor=2.5), torch.tensor([[1.0, 0.75]]))
    sigmoids = torch.sigmoid(logits[:, [3, 2]])
    torch.testing.assert_close(weights(scores="topk_sigmoid"), sigmoids)
    found = weights(scores="sigmoid", norm_topk_prob=True).sort(descending=True).values
    torch.testing.assert_close(found, sigmoids / sigmoids.sum())


@pytest.mark.parametrize("scores", ["softmax", "sigmoid", "topk_softmax", "topk_sigmoid"])
def test_no_tokens(scores):
    found = route(torch.empty(0, 8), Routing(2, scores))
    assert found.weights.shape == found.experts.shape == (0, 2)


def test_a_familys_fixed_switches_stay():
    assert routing_for("mixtral", {"norm_topk_prob": False}).norm_topk_prob
    assert routing_for("qwen3_moe", {"norm_topk_prob": True}).norm_topk_prob
    assert routing_for("gpt_oss", {"experts_per_token": 3, "top_k": 9}).top_k == 3
    assert routing_for("deepseek_v3", {"n_group": None}).n_group == 8


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"top_k": 0}, "top_k is 0"),
        ({"top_k": True}, "top_k is True"),
        ({"top_k": 2, "scores": "tanh"}, "scores is 'tanh'"),
        ({"top_k": 2, "scores": "sigmoid", "topk_group": 3}, "topk_group is 3, n_group 1"),
        ({"top_k": 2, "n_group": 4}, 'groups with "sigmoid" scores only'),
        ({"top_k": 2, "on_input": True}, "on the input of 2 experts"),
    ],
)
def test_bad_routing_is_refused(how, text):
    with pytest.raises(UsageError) as caught:
        Routing(**how)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("routing", "text"),
    [
        (Routing(9), "top_k is 9, num_experts 8"),
        (Routing(1, "sigmoid", n_group=3), "8 experts do not make 3 groups"),
        (Routing(1, "sigmoid", n_group=8), "8 experts do not make 8 groups"),
        (Routing(5, "sigmoid", n_group=2), "1 of 2 groups hold 4 experts"),
    ],
)
def test_routing_that_does_not_fit_the_experts_is_refused(routing, text):
    with pytest.raises(UsageError) as caught:
        route(torch.zeros(3, 8), routing)
    assert text in str(caught.value)


def test_other_bad_input_is_refused():
    with pytest.raises(UsageError, match=r"logits have shape \(8,\)"):
        route(torch.zeros(8), Routing(1))
    with pytest.raises(UsageError, match="a correction bias with scores 'softmax'"):
        route(torch.zeros(3, 8), Routing(1), torch.zeros(8))
    with pytest.raises(UsageError, match="the routing of 'llama' is not known"):
        routing_for("llama")
    assert set(ROUTERS) <= set(FAMILY_ROUTING)
