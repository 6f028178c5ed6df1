def ffn_width(hidden_size, multiple_of, ffn_dim_multiplier):
    width = int(ffn_dim_multiplier * 8 * hidden_size / 3)
    return multiple_of * -(-width // multiple_of)
