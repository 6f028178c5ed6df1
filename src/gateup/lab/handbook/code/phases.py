mlp = gateup.open("llama-3-8b").spec.layers[0].mlp
H, I, size = 4096, mlp.intermediate_size, 2
tokens = [1, 4, 16, 64, 256, 1024, 4096]
ratio = [6 * H * I * T / (3 * H * I * size + 2 * T * H * size) for T in tokens]
for T, r in zip(tokens, ratio):
    print(f"T = {T:5}   {r:8.1f} FLOP/B")
chart({"SwiGLU": (np.log2(tokens), np.log2(ratio))}, "log₂ T", "log₂ FLOP/B")
