"""The pages. Each module has `params(models)`, its parameters, and `build(frame)`, which draws."""
