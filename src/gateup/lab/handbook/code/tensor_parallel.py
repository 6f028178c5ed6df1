H, I, ranks = 8, 24, 4
x = rng.normal(size=(5, H))
w_gate, w_up, w_down = weights(H, I)
right = swiglu(x, w_gate, w_up, w_down)

step = I // ranks
parts = []
for r in range(ranks):
    mine = slice(r * step, (r + 1) * step)
    parts.append(swiglu(x, w_gate[mine], w_up[mine], w_down[:, mine]))
print("one part:", np.allclose(parts[0], right), "  sum:", np.allclose(sum(parts), right))

# A merged gate_up cut straight through: rank 0 gets gate's rows only.
merged = np.concatenate([w_gate, w_up])
wrong = []
for r in range(ranks):
    rows = merged[r * 2 * step : (r + 1) * 2 * step]
    mine = slice(r * step, (r + 1) * step)
    wrong.append(swiglu(x, rows[:step], rows[step:], w_down[:, mine]))
print("gate_up cut in two:", np.allclose(sum(wrong), right))
