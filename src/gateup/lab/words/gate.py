"""The Gate page."""

EN = {
    "title": "Gate",
    "about": "What one channel of the block computes: act(a)·b, where a is the gate "
    "projection's output and b the up projection's.",
    "show": "Functions",
    "reach": "Range of a and b: ±",
    "a": "a (gate)",
    "b": "b (up)",
    "along": "Slice",
    "along.a": "along a, b held at the probe",
    "along.b": "along b, a held at the probe",
    "show.silu": "SwiGLU: SiLU(a)·b",
    "show.gelu": "GeGLU: GELU(a)·b",
    "show.gelu_tanh": "GeGLU, tanh form",
    "show.relu": "ReGLU: ReLU(a)·b",
    "show.bilinear": "Bilinear: a·b",
    "show.sigmoid": "GLU: σ(a)·b",
    "show.gpt_oss": "gpt-oss: clamped, b + 1",
    "show.ungated": "no gate: GELU(a)",
    "surfaces": "The surfaces",
    "surfaces_note": "All have the same axes, the same scale and the same view; turn one and the "
    "others follow. The dot is the probe.",
    "slices": "Slices through the probe",
    "probe": "At the probe",
    "function": "function",
    "formula": "formula",
    "z": "value z",
    "by_a": "∂z/∂a",
    "by_b": "∂z/∂b",
    "product": "With a gate the output is a product of two things that both depend on the token: "
    "∂z/∂b = act(a) says how far the gate is open, and ∂z/∂a grows with b, so a channel can learn "
    "through either. Without one, b does not exist: the last surface is the same for every b.",
}

ZH = {
    "title": "门",
    "about": "本块的一个通道所计算的内容：act(a)·b，"
    "其中 a 是 gate 投影的输出，b 是 up 投影的输出。",
    "show": "函数",
    "reach": "a 与 b 的范围：±",
    "a": "a（gate）",
    "b": "b（up）",
    "along": "切片",
    "along.a": "沿 a，b 固定在探针处",
    "along.b": "沿 b，a 固定在探针处",
    "show.silu": "SwiGLU：SiLU(a)·b",
    "show.gelu": "GeGLU：GELU(a)·b",
    "show.gelu_tanh": "GeGLU，tanh 近似",
    "show.relu": "ReGLU：ReLU(a)·b",
    "show.bilinear": "双线性：a·b",
    "show.sigmoid": "GLU：σ(a)·b",
    "show.gpt_oss": "gpt-oss：截断，b + 1",
    "show.ungated": "无门：GELU(a)",
    "surfaces": "曲面",
    "surfaces_note": "所有曲面的坐标轴、比例和视角都相同；转动其中一个，其余跟随。圆点是探针。",
    "slices": "经过探针的切片",
    "probe": "探针处",
    "function": "函数",
    "formula": "公式",
    "z": "值 z",
    "by_a": "∂z/∂a",
    "by_b": "∂z/∂b",
    "product": "有门时，输出是两个都依赖于该 token 的量之积：∂z/∂b = act(a) 表示门开了多少，∂z/∂a "
    "随 b 增大，因此通道可以通过任何一边来学习。没有门时 b 不存在：最后一个曲面对每个 b 都相同。",
}
