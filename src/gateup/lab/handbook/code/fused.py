from gateup.model.layout import GateUpLayout, join, split

H, I = 8, 24
x = rng.normal(size=(5, H))
w_gate, w_up, w_down = weights(H, I)
right = swiglu(x, w_gate, w_up, w_down)

merged = np.concatenate([w_gate, w_up])  # [2I, H]: one product instead of two
both = x @ merged.T
print("merged:", np.allclose((silu(both[:, :I]) * both[:, I:]) @ w_down.T, right))

# The shape is the same, the order is not: nothing complains, and the answer is wrong.
interleaved = join(w_gate, w_up, GateUpLayout(form="interleaved"))
both = x @ interleaved.T
print(
    merged.shape == interleaved.shape,
    np.allclose((silu(both[:, :I]) * both[:, I:]) @ w_down.T, right),
)
gate, up = split(interleaved, GateUpLayout(form="interleaved"))
print("split:", np.array_equal(gate, w_gate) and np.array_equal(up, w_up))
