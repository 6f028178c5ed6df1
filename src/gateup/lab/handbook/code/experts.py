H, I, E, k = 8, 12, 6, 2
x = rng.normal(size=(40, H))
experts = [weights(H, I) for _ in range(E)]
router = rng.normal(size=(E, H)) / H**0.5

scores = x @ router.T
chosen = np.argsort(-scores, axis=1)[:, :k]
top = np.take_along_axis(scores, chosen, axis=1)
share = np.exp(top) / np.exp(top).sum(1, keepdims=True)

# Token by token, and expert by expert: the same sum, and the second reads each expert once.
slow = np.stack(
    [
        sum(s * swiglu(t[None], *experts[e])[0] for e, s in zip(es, ss))
        for t, es, ss in zip(x, chosen, share)
    ]
)
fast = np.zeros_like(x)
for e in range(E):
    rows, place = np.where(chosen == e)
    fast[rows] += share[rows, place, None] * swiglu(x[rows], *experts[e])
print("equal:", np.allclose(slow, fast), "  tokens:", [int((chosen == e).sum()) for e in range(E)])
