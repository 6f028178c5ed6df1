def gate_and_up(fused, bias, form):
    I = len(bias) // 2
    if form == "interleaved_in_out":
        fused = fused.T
    a, b = slice(None, I), slice(I, None)
    if form.startswith("interleaved"):
        return fused[::2], fused[1::2], bias[a], bias[b]
    if form == "halves_up_first":
        a, b = b, a
    return fused[a], fused[b], bias[a], bias[b]
