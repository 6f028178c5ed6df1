H, I, r, alpha = 8, 24, 2, 4
x = rng.normal(size=(5, H))
w_gate, w_up, w_down = weights(H, I)
A, B = rng.normal(size=(r, H)), np.zeros((I, r))
beside = swiglu(x, w_gate + alpha / r * B @ A, w_up, w_down)
print("B = 0:", np.array_equal(beside, swiglu(x, w_gate, w_up, w_down)))

B = rng.normal(size=(I, r))
gate = x @ w_gate.T + alpha / r * (x @ A.T) @ B.T
by_hand = (silu(gate) * (x @ w_up.T)) @ w_down.T
print("merged:", np.allclose(by_hand, swiglu(x, w_gate + alpha / r * B @ A, w_up, w_down)))
print("r·(H + I) =", r * (H + I), "   H·I =", H * I)
