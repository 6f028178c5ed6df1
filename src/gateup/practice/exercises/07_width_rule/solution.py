def ffn_width(hidden_size: int, multiple_of: int, ffn_dim_multiplier: float) -> int:
    """The intermediate size I that LLaMA's rule gives: an int."""
    width = int(8 * hidden_size / 3)
    width = int(ffn_dim_multiplier * width)
    # -(-a // b) rounds up in whole numbers, without a float in between.
    return multiple_of * -(-width // multiple_of)
