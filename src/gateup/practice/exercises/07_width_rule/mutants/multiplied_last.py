def ffn_width(hidden_size, multiple_of, ffn_dim_multiplier):
    width = int(8 * hidden_size / 3)
    return int(ffn_dim_multiplier * (multiple_of * -(-width // multiple_of)))
