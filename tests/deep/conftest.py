"""A model small enough to train in seconds, on the text that checks read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gateup.deep.text import TEXT

SIZES = {
    "vocab_size": 256,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _tokenizer(folder: Path) -> None:
    """Bytes as tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.save(str(folder / "tokenizer.json"))


def _train(kind: str, folder: Path, steps: int) -> None:
    from tokenizers import Tokenizer
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    bias = {"mlp_bias": True} if kind == "llama" else {}
    config = AutoConfig.for_model(kind, **SIZES, **bias)
    model = AutoModelForCausalLM.from_config(config)
    folder.mkdir()
    _tokenizer(folder)
    ids = torch.tensor(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(steps):
        starts = torch.randint(0, len(ids) - 64, (16,))
        batch = torch.stack([ids[s : s + 64] for s in starts.tolist()])
        optimiser.zero_grad()
        model(batch, labels=batch).loss.backward()
        optimiser.step()
    model.save_pretrained(folder)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers with biases, after 120 steps."""
    folder = tmp_path_factory.mktemp("trained") / "model"
    _train("llama", folder, 120)
    return folder


@pytest.fixture(scope="session")
def trained_fused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Phi-3, whose gate and up share one tensor."""
    folder = tmp_path_factory.mktemp("fused") / "model"
    _train("phi3", folder, 120)
    return folder


@pytest.fixture(scope="session")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose head is its embedding, as transformers makes it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tied") / "model"
    LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)).save_pretrained(folder)
    return folder
