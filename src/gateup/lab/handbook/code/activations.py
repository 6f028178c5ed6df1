from math import erf


def relu(a):
    return np.maximum(a, 0)


def gelu(a):
    return a * 0.5 * (1 + np.vectorize(erf)(a / 2**0.5))


points = np.array([-3.0, -1.0, 0.0, 1.0, 3.0])
for act in (relu, gelu, silu):
    print(f"{act.__name__:5}", *(f"{y:8.4f}" for y in act(points)))

a = np.linspace(-4, 4, 161)
chart({"ReLU": (a, relu(a)), "GELU": (a, gelu(a)), "SiLU": (a, silu(a))}, "a", "act(a)")
