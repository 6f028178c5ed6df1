H, WIDE, NARROW = 16, 72, 48
assert 2 * H * WIDE == 3 * H * NARROW  # the same number of parameters


def train(kind, target, seed, steps=500, rate=4e-3):
    """Adam on fresh samples; the squared error on unseen ones over the target's variance."""
    rng = np.random.default_rng(seed)
    act, slope = {"ReLU": (relu, slope_relu), "SwiGLU": (silu, slope_silu)}[kind]
    gated = kind == "SwiGLU"
    shapes = [(NARROW, H), (NARROW, H), (H, NARROW)] if gated else [(WIDE, H), (H, WIDE)]
    w = [rng.normal(size=s) / s[1] ** 0.5 for s in shapes]
    first, second = [0 * m for m in w], [0 * m for m in w]
    for step in range(1, steps + 1):
        x = rng.normal(size=(128, H))
        a = x @ w[0].T
        up = x @ w[1].T if gated else 1.0
        h = act(a) * up
        by_y = 2 * (h @ w[-1].T - target(x)) / len(x)
        by_h = by_y @ w[-1]
        grads = [(by_h * up * slope(a)).T @ x, by_y.T @ h]
        if gated:
            grads.insert(1, (by_h * act(a)).T @ x)
        for m, g, v1, v2 in zip(w, grads, first, second):
            v1 += 0.1 * (g - v1)
            v2 += 0.01 * (g * g - v2)
            now = rate * 0.5 * (1 + np.cos(np.pi * step / steps))
            m -= now * v1 / (1 - 0.9**step) / (np.sqrt(v2 / (1 - 0.99**step)) + 1e-8)
    x = np.random.default_rng(10**6).normal(size=(2000, H))
    up = x @ w[1].T if gated else 1.0
    error = (act(x @ w[0].T) * up) @ w[-1].T - target(x)
    return (error**2).mean() / target(x).var()


order = rng.permutation(H)
kinks_in, kinks_out = rng.normal(size=(24, H)) / H**0.5, rng.normal(size=(H, 24)) / 24**0.5
targets = {
    "x_i · x_j": lambda x: x * x[:, order],
    "Σ relu": lambda x: relu(x @ kinks_in.T) @ kinks_out.T,
}
results = {
    (name, kind): np.median([train(kind, target, seed) for seed in (1, 2, 3)])
    for name, target in targets.items()
    for kind in ("ReLU", "SwiGLU")
}
print("parameters:", 2 * H * WIDE, "=", 3 * H * NARROW)
for name in targets:
    print(f"{name:10}", *(f"{kind} {results[name, kind]:.3f}" for kind in ("ReLU", "SwiGLU")))
