H, I = 8, 24
x = rng.normal(size=(5, H))
w_gate, w_up, w_down = weights(H, I)
right = swiglu(x, w_gate, w_up, w_down)


def same(gate, up, down):
    return np.allclose(swiglu(x, gate, up, down), right)


more = ((0, 8), (0, 0))
print("I + 8 zeros: ", same(np.pad(w_gate, more), np.pad(w_up, more), np.pad(w_down, more[::-1])))
p = rng.permutation(I)
print("shuffled:    ", same(w_gate[p], w_up[p], w_down[:, p]))
print("up·c, down/c:", same(w_gate, 3 * w_up, w_down / 3))
print("gate·c:      ", same(3 * w_gate, w_up / 3, w_down))
print("I − 8:       ", same(w_gate[:-8], w_up[:-8], w_down[:, :-8]))
