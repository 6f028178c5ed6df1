import numpy as np


def ledger(config):
    H, I = config["hidden_size"], config["intermediate_size"]
    L, V, d = config["num_hidden_layers"], config["vocab_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    norm = L * (2 * H + (2 * d if config["qk_norm"] else 0)) + H
    parts = [V * H, L * (2 * H * q + 2 * H * kv), L * 3 * H * I, norm, V * H]
    return np.array([*parts, sum(parts)], dtype=np.int64)
