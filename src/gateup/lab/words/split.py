"""The Split page."""

EN = {
    "title": "Split",
    "about": "One layer over several ranks: who holds which rows, columns, heads and experts, and "
    "where the one all-reduce is.",
    "tp": "Tensor parallel",
    "ep": "Expert parallel",
    "kind": "Layer",
    "kind.dense": "layers {layers}: dense",
    "kind.moe": "layers {layers}: {n} experts",
    "quant": "Weights stored as",
    "tokens": "Tokens T",
    "how": "Open every formula",
    "lanes": "From x to y",
    "lanes_note": "x is whole on every rank. A rank computes its part of the width I by itself, "
    "because act ⊙ works channel by channel: row i of gate needs only row i of up. Each down "
    "then gives a full-sized part of y, and these parts are summed: the one all-reduce of the MLP. "
    "(Attention has one too, after o_proj.)",
    "matrices": "The matrices",
    "whole": "Each expert lies whole on one rank; what is split is which rank has which experts. "
    "A rank computes its experts for the tokens that chose them, and the sum is the same.",
    "all_reduce": "all-reduce",
    "rank": "rank",
    "gate": "rows of gate",
    "up": "rows of up",
    "first": "rows of the first matrix",
    "down": "columns of down",
    "experts": "experts",
    "heads": "query heads",
    "kv_heads": "KV heads",
    "concat": "Gate and up lie one after the other in one tensor here: each rank takes matching "
    "rows of both. Cutting the tensor in two instead gives one rank all of the gate; it loads "
    "without complaint and computes garbage.",
    "interleaved": "Gate and up lie in one tensor here, row by row (even: gate, odd: up), so a "
    "rank's rows of both are neighbours. Read as two halves instead, it loads without complaint "
    "and computes garbage.",
    "turned": "The file stores this tensor input-major: what is called rows here are its columns.",
    "cannot": "This split cannot be",
    "largest": "Tensor parallel {tp} is the largest degree below it that divides.",
    "figures": "Per rank",
    "fig.weights": "weights of the fullest rank",
    "fig.mlp": "of them in the MLPs",
    "fig.all_reduce": "summed by one all-reduce",
    "one_rank": "With one rank nothing is split.",
    "error.no_mlp": "{name} has no MLP to split",
    "error.no_experts": "expert parallel {ep}, and layers {layers} of {name} have no experts",
    "error.no_experts.expected": "expert parallel 1",
}

ZH = {
    "title": "切分",
    "about": "一层分布在多个 rank 上：谁持有哪些行、列、注意力头和专家，唯一的 all-reduce 在哪里。",
    "tp": "张量并行",
    "ep": "专家并行",
    "kind": "层",
    "kind.dense": "第 {layers} 层：稠密",
    "kind.moe": "第 {layers} 层：{n} 个专家",
    "quant": "权重存储格式",
    "tokens": "token 数 T",
    "how": "展开所有公式",
    "lanes": "从 x 到 y",
    "lanes_note": "x 在每个 rank 上都是完整的。每个 rank 独立计算自己那部分宽度 I，"
    "因为 act ⊙ 逐通道进行："
    "gate 的第 i 行只需要 up 的第 i 行。随后每个 down 给出 y 的一个完整大小的部分和，"
    "再把这些部分和相加：这就是 MLP 唯一的 all-reduce。（注意力在 o_proj 之后也有一次。）",
    "matrices": "矩阵",
    "whole": "每个专家完整地在一个 rank 上；切分的是哪个 rank 拥有哪些专家。"
    "每个 rank 为选中其专家的 token 计算这些专家，求和方式相同。",
    "all_reduce": "all-reduce",
    "rank": "rank",
    "gate": "gate 的行",
    "up": "up 的行",
    "first": "第一个矩阵的行",
    "down": "down 的列",
    "experts": "专家",
    "heads": "查询头",
    "kv_heads": "KV 头",
    "concat": "此处 gate 与 up 在同一个张量中一前一后：每个 rank 取两者相对应的行。"
    "若把张量直接切成两半，则一个 rank 会得到全部 gate；加载时毫无怨言，算出的却是垃圾。",
    "interleaved": "此处 gate 与 up 在同一个张量中逐行交错（偶数行是 gate，奇数行是 up），"
    "因此一个 rank 的两种行彼此相邻。若当作两半来读，加载时毫无怨言，算出的却是垃圾。",
    "turned": "文件以输入为主序存储此张量：这里所说的行是它的列。",
    "cannot": "无法这样切分",
    "largest": "不大于它且可整除的最大张量并行度是 {tp}。",
    "figures": "每个 rank",
    "fig.weights": "最满的 rank 的权重",
    "fig.mlp": "其中 MLP",
    "fig.all_reduce": "一次 all-reduce 所求和的",
    "one_rank": "只有一个 rank 时没有切分。",
    "error.no_mlp": "{name} 没有可切分的 MLP",
    "error.no_experts": "专家并行度为 {ep}，而 {name} 的第 {layers} 层没有专家",
    "error.no_experts.expected": "专家并行度 1",
}
