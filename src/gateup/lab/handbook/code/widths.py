def width(H, multiple_of=256, multiplier=1.0):
    return multiple_of * -(-int(multiplier * int(8 * H / 3)) // multiple_of)


for name, H, *rule in (
    ("llama-2-7b", 4096),
    ("llama-2-13b", 5120),
    ("llama-2-70b", 8192, 4096, 1.3),
    ("llama-3-8b", 4096, 1024, 1.3),
):
    I = gateup.open(name).spec.layers[0].mlp.intermediate_size
    print(f"{name:12} 8H/3 = {8 * H / 3:9.2f}  →  {width(H, *rule)}  I/H = {I / H:.4f}")
    assert width(H, *rule) == I
