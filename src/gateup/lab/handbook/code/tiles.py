def tiled(x, tile, *w):
    """The same block, `tile` tokens at a time."""
    return np.concatenate([swiglu(x[i : i + tile], *w) for i in range(0, len(x), tile)])


T, H, I = 96, 32, 112
x, w = rng.normal(size=(T, H)), weights(H, I)
print("equal:", np.allclose(swiglu(x, *w), tiled(x, 16, *w)))
print("3·T·I =", 3 * T * I, "   3·16·I + T·H =", 3 * 16 * I + T * H)
