def ffn_width(hidden_size, multiple_of, ffn_dim_multiplier):
    """The intermediate size I that LLaMA's rule gives: an int."""
    width = int(8 * hidden_size / 3)
    width = int(ffn_dim_multiplier * width)
    # -(-a // b) rounds up in whole numbers, without a float in between.
    return multiple_of * -(-width // multiple_of)
