B, T, H, I = 2, 5, 8, 24
x = rng.normal(size=(B, T, H))
w_gate, w_up, w_down = weights(H, I)

gate = x @ w_gate.T
up = x @ w_up.T
hidden = silu(gate) * up
y = hidden @ w_down.T
for name, value in {"x": x, "gate": gate, "up": up, "silu(gate)·up": hidden, "y": y}.items():
    print(f"{name:14}", value.shape)

# The same by einsum: one letter an axis, and i is the one that down sums away.
again = np.einsum("bti,hi->bth", hidden, w_down)
assert np.allclose(again, y)
