def gate_and_up(fused, bias, form):
    if form == "interleaved_in_out":
        fused = fused.T
    I = len(bias) // 2
    a, b = slice(None, I), slice(I, None)
    if form == "halves_up_first":
        a, b = b, a
    return fused[a], fused[b], bias[a], bias[b]
