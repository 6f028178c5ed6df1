def gate_and_up(fused, bias, form):
    I = len(bias) // 2
    if form == "interleaved_in_out":
        fused = fused.T
    if form.startswith("interleaved"):
        return fused[::2], fused[1::2], bias[::2], bias[1::2]
    return fused[:I], fused[I:], bias[:I], bias[I:]
