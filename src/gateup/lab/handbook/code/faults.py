H, I = 64, 224
x = rng.normal(size=(16, H))
w_gate, w_up, w_down = weights(H, I)
right = swiglu(x, w_gate, w_up, w_down)
swapped = swiglu(x, w_up, w_gate, w_down)
print(f"gate ↔ up: {np.linalg.norm(swapped - right) / np.linalg.norm(right):.0%}")

for finding in gateup.check("qwen2-72b", tp=8, quant="awq:128").findings:
    if finding.severity == "error":
        print(f"{finding.rule}: {finding.title}")
        print("→", finding.remedy.split(";")[0])
