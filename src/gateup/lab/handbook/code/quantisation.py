from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

H, I = 256, 768
x = rng.normal(size=(16, H))
w = [m.astype(np.float32) for m in weights(H, I)]
right = swiglu(x, *w)
for kind in (Type.Q8_0, Type.Q5_0, Type.Q4_0):
    stored = [quantize(m, kind) for m in w]
    bits = 8 * sum(s.nbytes for s in stored) / sum(m.size for m in w)
    y = swiglu(x, *(dequantize(s, kind) for s in stored))
    error = np.linalg.norm(y - right) / np.linalg.norm(right)
    print(f"{kind.name}: {bits:.1f} bits, error {error:.2%}")
