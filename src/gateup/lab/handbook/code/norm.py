def rms_norm(x, weight, eps=1e-5):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rms(x):
    return np.sqrt((x * x).mean())


x = rng.normal(size=(16, 64)) + 0.5
one = np.ones(64)
normed = rms_norm(x, one)
print("rms:", rms(normed).round(3), "  mean:", normed.mean().round(3))
print("norm(10·x) = norm(x):", np.allclose(rms_norm(10 * x, one), normed, atol=1e-3))

layers = [weights(64, 192) for _ in range(6)]
for start in (0.5, 8.0):
    stream = alone = start * normed
    for w in layers:
        stream = stream + swiglu(rms_norm(stream, one), *w)
        alone = swiglu(alone, *w)
    print(f"rms {start} →  x + FFN(norm(x)): {rms(stream):.2f}   FFN(x): {rms(alone):.1e}")
