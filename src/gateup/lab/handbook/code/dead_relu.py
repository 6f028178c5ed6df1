def slope_relu(a):
    return (a > 0) * 1.0


def slope_silu(a):
    s = 1 / (1 + np.exp(-a))
    return s * (1 + a * (1 - s))


def descend(act, slope, rate, steps=200, width=64):
    """Gradient descent on 256 points; a neuron is dead when its slope is 0 on every one."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 8))
    y = np.sin(2 * x[:, :1]) + 0.5 * x[:, 1:2]
    w1, b = rng.normal(size=(8, width)) / 8**0.5, np.zeros(width)
    w2 = rng.normal(size=(width, 1)) / width**0.5
    dead, loss = [], []
    for _ in range(steps):
        a = x @ w1 + b
        error = act(a) @ w2 - y
        loss.append((error**2).mean())
        dead.append(int((slope(a) == 0).all(0).sum()))
        by_out = 2 * error / len(x)
        by_a = (by_out @ w2.T) * slope(a)
        w2 -= rate * act(a).T @ by_out
        w1 -= rate * x.T @ by_a
        b -= rate * by_a.sum(0)
    return dead, loss


curves = {}
for name, act, slope in (("ReLU", relu, slope_relu), ("SiLU", silu, slope_silu)):
    for rate in (0.05, 0.2):
        dead, loss = descend(act, slope, rate)
        print(f"{name} η={rate}: dead {dead[0]} → {dead[5]} → {dead[-1]} / 64, loss {loss[-1]:.3f}")
        curves[f"{name} η={rate}"] = (range(len(dead)), dead)
chart(curves, "step", "dead")
