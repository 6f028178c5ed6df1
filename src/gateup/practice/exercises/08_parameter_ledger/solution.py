import numpy as np


def ledger(config: dict) -> np.ndarray:
    """int64 [6]: embedding, attention, mlp, norm, head, total."""
    H, I = config["hidden_size"], config["intermediate_size"]
    L, V, d = config["num_hidden_layers"], config["vocab_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d

    embedding = V * H
    attention = L * (H * q + 2 * H * kv + q * H)  # q, k and v, o
    mlp = L * 3 * H * I  # gate, up, down
    norm = L * (2 * H + (2 * d if config["qk_norm"] else 0)) + H
    head = 0 if config["tie_word_embeddings"] else V * H
    parts = [embedding, attention, mlp, norm, head]
    return np.array([*parts, sum(parts)], dtype=np.int64)
