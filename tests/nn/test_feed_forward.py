"""RMSNorm and the sublayer: the bits of transformers' decoder layers, family by family."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    Olmo2Config,
    Qwen3Config,
)
from transformers.models.gemma2.modeling_gemma2 import Gemma2DecoderLayer
from transformers.models.gemma3.modeling_gemma3 import Gemma3DecoderLayer
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
from transformers.models.granite.modeling_granite import GraniteDecoderLayer
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.olmo2.modeling_olmo2 import Olmo2DecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from gateup.errors import UsageError
from gateup.nn import FeedForward, GatedMLP, RMSNorm

H, WIDTH = 32, 48
SIZES = {"hidden_size": H, "intermediate_size": WIDTH, "num_attention_heads": 4, "head_dim": 8,
         "num_key_value_heads": 2, "num_hidden_layers": 2}  # fmt: skip
# family: layer, config, style, norm before, norm after, activation
FAMILIES = {
    "llama": (LlamaDecoderLayer, LlamaConfig, "llama", "post_attention_layernorm", None, "silu"),
    "qwen3": (Qwen3DecoderLayer, Qwen3Config, "llama", "post_attention_layernorm", None, "silu"),
    "granite": (
        GraniteDecoderLayer, GraniteConfig, "llama", "post_attention_layernorm", None, "silu",
    ),
    "gemma2": (
        Gemma2DecoderLayer, Gemma2Config, "gemma",
        "pre_feedforward_layernorm", "post_feedforward_layernorm", "gelu_tanh",
    ),
    "gemma3": (
        Gemma3DecoderLayer, Gemma3TextConfig, "gemma",
        "pre_feedforward_layernorm", "post_feedforward_layernorm", "gelu_tanh",
    ),
    "olmo2": (
        Olmo2DecoderLayer, Olmo2Config, "float32", None, "post_feedforward_layernorm", "silu",
    ),
}  # fmt: skip


def stock_layer(family, dtype):
    layer_class, config_class, *_ = FAMILIES[family]
    torch.manual_seed(0)
    extra = {"residual_multiplier": 0.22} if family == "granite" else {}
    sizes = {k: v for k, v in SIZES.items() if k != "head_dim" or family != "olmo2"}
    layer = layer_class(config_class(**sizes, **extra), 0)
    with torch.no_grad():
        for name, p in layer.named_parameters():
            if "norm" in name:
                p.add_(torch.randn_like(p) * 0.3)
    return layer.to(dtype)


def stock_forward(layer, family, x):
    """The second half of the layer's forward, which is what FeedForward stands for."""
    _, _, _, before, after, _ = FAMILIES[family]
    branch = layer.mlp(getattr(layer, before)(x) if before else x)
    if after:
        branch = getattr(layer, after)(branch)
    return x + branch * 0.22 if family == "granite" else x + branch


def ours_from(layer, family, dtype):
    _, _, style, before, after, act = FAMILIES[family]
    eps = layer.post_attention_layernorm
    eps = getattr(eps, "variance_epsilon", getattr(eps, "eps", None))

    def norm(name):
        if name is None:
            return None
        made = RMSNorm(H, eps, style=style, dtype=dtype)
        made.load_state_dict(getattr(layer, name).state_dict())
        return made

    mlp = GatedMLP(H, WIDTH, act, dtype=dtype)
    mlp.load_state_dict(layer.mlp.state_dict())
    return FeedForward(
        mlp,
        norm(before),
        post_norm=norm(after),
        residual_multiplier=0.22 if family == "granite" else 1.0,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_bits_of_the_sublayer(family, dtype):
    layer = stock_layer(family, dtype)
    ours = ours_from(layer, family, dtype)
    a, b = (
        torch.randn(2, 9, H, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
        for _ in range(2)
    )
    theirs, found = stock_forward(layer, family, a), ours(b)
    assert torch.equal(found, theirs)
    assert not torch.equal(found, b)
    grad = torch.randn(2, 9, H).to(dtype)
    theirs.backward(grad)
    found.backward(grad)
    assert torch.equal(a.grad, b.grad)
    for p, q in zip(layer.mlp.parameters(), ours.mlp.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)
    _, _, _, before, after, _ = FAMILIES[family]
    for name, mine in ((before, ours.norm), (after, ours.post_norm)):
        if name:
            assert torch.equal(getattr(layer, name).weight.grad, mine.weight.grad)


def test_the_stock_layers_second_half_is_what_the_test_says():
    """With attention silenced, the whole layer is its second half."""
    for family in ("llama", "gemma2", "olmo2", "granite"):
        layer = stock_layer(family, torch.float32)
        with torch.no_grad():
            layer.self_attn.o_proj.weight.zero_()
        x = torch.randn(1, 5, H)
        position = torch.ones(1, 5, 8), torch.zeros(1, 5, 8)
        whole = layer(x, position_embeddings=position, attention_mask=None)
        whole = whole[0] if isinstance(whole, tuple) else whole
        assert torch.equal(whole, stock_forward(layer, family, x)), family


def test_gpt_oss_norm():
    torch.manual_seed(0)
    stock = GptOssRMSNorm(H, 1e-5)
    with torch.no_grad():
        stock.weight.normal_()
    ours = RMSNorm(H, 1e-5, style="float32")
    ours.load_state_dict(stock.state_dict())
    x = torch.randn(7, H).bfloat16()
    assert torch.equal(ours(x), stock(x))
    assert ours(x).dtype == torch.bfloat16
    llama = RMSNorm(H, 1e-5).bfloat16()
    llama.load_state_dict(stock.state_dict())
    assert not torch.equal(llama(x), ours(x))  # a style is not a matter of taste


def test_a_fresh_norm_only_normalises():
    x = torch.tensor([[3.0, 4.0]])
    for style in ("llama", "gemma", "float32"):
        expected = x / (12.5 + 1e-6) ** 0.5
        torch.testing.assert_close(RMSNorm(2, style=style)(x), expected)


def test_float64_is_computed_in_float64():
    x = torch.tensor([[1.0, 1.0 + 2**-40]], dtype=torch.float64)
    y = RMSNorm(2, 0.0, dtype=torch.float64)(x)
    assert y[0, 0] != y[0, 1]


def test_bad_arguments_are_refused():
    with pytest.raises(UsageError, match="style is 'layernorm'"):
        RMSNorm(H, style="layernorm")
    for size in (0, True, "32"):
        with pytest.raises(UsageError, match=f"hidden_size is {size!r}"):
            RMSNorm(size)
    with pytest.raises(UsageError, match="mlp is None"):
        FeedForward(None, RMSNorm(H))
    with pytest.raises(UsageError, match="post_norm is 'rms'"):
        FeedForward(RMSNorm(H), None, post_norm="rms")
    with pytest.raises(UsageError, match=r"x has shape \(2, 31\)"):
        RMSNorm(H)(torch.randn(2, H - 1))
    assert "eps=1e-06, style=gemma" in repr(RMSNorm(H, style="gemma"))
    module = FeedForward(GatedMLP(H, WIDTH), None, residual_multiplier=0.5)
    assert "residual_multiplier=0.5" in repr(module)
