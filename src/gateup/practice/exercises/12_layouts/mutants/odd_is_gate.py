def gate_and_up(fused, bias, form):
    I = len(bias) // 2
    if form == "interleaved_in_out":
        fused = fused.T
    if form.startswith("interleaved"):
        return fused[1::2], fused[::2], bias[1::2], bias[::2]
    a, b = slice(None, I), slice(I, None)
    if form == "halves_up_first":
        a, b = b, a
    return fused[a], fused[b], bias[a], bias[b]
