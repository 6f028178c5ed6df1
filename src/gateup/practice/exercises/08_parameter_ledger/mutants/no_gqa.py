import numpy as np


def ledger(config):
    H, I = config["hidden_size"], config["intermediate_size"]
    L, V, d = config["num_hidden_layers"], config["vocab_size"], config["head_dim"]
    q = config["num_attention_heads"] * d
    norm = L * (2 * H + (2 * d if config["qk_norm"] else 0)) + H
    head = 0 if config["tie_word_embeddings"] else V * H
    parts = [V * H, L * 4 * H * q, L * 3 * H * I, norm, head]
    return np.array([*parts, sum(parts)], dtype=np.int64)
