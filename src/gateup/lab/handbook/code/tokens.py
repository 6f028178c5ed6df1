def attention(x):
    """One head without weights: every token looks at those before it."""
    scores = x @ x.T / x.shape[1] ** 0.5
    scores[np.triu_indices(len(x), 1)] = -np.inf
    p = np.exp(scores - scores.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True) @ x


x = rng.normal(size=(6, 8))
w = weights(8, 24)
changed = x.copy()
changed[:5] = rng.normal(size=(5, 8))  # every token but the last one is another

same = np.array_equal(swiglu(x, *w)[5], swiglu(changed, *w)[5])
print("FFN:", same, "  attention:", np.array_equal(attention(x)[5], attention(changed)[5]))

shuffle = rng.permutation(6)
print("FFN(P·x) = P·FFN(x):", np.allclose(swiglu(x[shuffle], *w), swiglu(x, *w)[shuffle]))
assert same
