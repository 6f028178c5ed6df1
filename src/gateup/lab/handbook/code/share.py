from gateup.account.crossover import crossover

for name in ("llama-2-7b", "llama-3-8b", "llama-2-70b", "qwen3-0.6b", "mixtral-8x7b"):
    spec = gateup.open(name).spec
    layer = sum(row.params for row in spec.layer_rows(0))
    model, own = spec.part_params("mlp") / spec.params, spec.part_params("mlp", 0) / layer
    context = crossover(spec).model.token
    print(f"{name:13} model {model:.1%}  layer {own:.1%}  T* = {float(context):,.0f}")
