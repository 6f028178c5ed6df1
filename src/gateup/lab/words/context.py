"""The Context page."""

EN = {
    "title": "Context",
    "about": "Attention grows with the context and the MLP does not: where one overtakes the "
    "other in FLOPs, and what grows in memory.",
    "ctx": "Context",
    "batch": "Batch",
    "kv": "KV cache in",
    "log": "Logarithmic axes",
    "how": "Open every formula",
    "flops": "FLOPs per token",
    "flops_note": "Matrix products of the MLP against attention's scores (QKᵀ and PV); the "
    "projections are on neither side. Two conventions are in use: a token at that context sees "
    "all of it (T*), the average token of a causal prefill sees half (2·T*). Both are marked.",
    "mlp_line": "MLP, whatever the context",
    "token_line": "attention, a token at that context",
    "mean_line": "attention, the mean over a prefill",
    "token": "T* =",
    "prefill": "T*, prefill =",
    "token_point": "T*: a token at that context",
    "prefill_point": "T*: the mean over a prefill",
    "never": "The lines do not cross: {why}",
    "memory": "Memory",
    "memory_note": "What must be held for each sequence (KV cache) against what a prefill of the "
    "whole context needs for a moment: the widest layer's MLP, run eager in one piece, and the "
    "logits. Engines that cut a prompt into chunks need the moment's part for a chunk only.",
    "kv_line": "KV cache",
    "mlp_memory": "MLP activations, one layer",
    "logits_last": "logits, last position",
    "logits_all": "logits, every position",
    "weights_line": "weights",
    "at": "At context {ctx}",
    "context_axis": "context, tokens",
    "flops_axis": "FLOPs per token",
    "bytes_axis": "GiB",
    "gemm.mlp": "MLP: matrix products",
    "attention_scores": "attention scores",
    "total": "all counted FLOPs of the token",
    "mlp_share": "MLP share of them",
    "mla": "MLA counts at its expanded heads here, as it prefills; decoding on the latent costs "
    "more per key.",
}

ZH = {
    "title": "上下文",
    "about": "注意力随上下文增长，MLP 不会：FLOPs 在何处反超，内存中又是什么在增长。",
    "ctx": "上下文",
    "batch": "批大小",
    "kv": "KV 缓存格式",
    "log": "对数坐标轴",
    "how": "展开所有公式",
    "flops": "每 token FLOPs",
    "flops_note": "MLP 的矩阵乘法与注意力分数（QKᵀ 和 PV）之比；投影不计入任何一边。有两种惯例："
    "处于该上下文的 token 看到全部上下文（T*），"
    "因果 prefill 的平均 token 只看到一半（2·T*）。两者都已标出。",
    "mlp_line": "MLP，与上下文无关",
    "token_line": "注意力，处于该上下文的 token",
    "mean_line": "注意力，prefill 的平均",
    "token": "T* =",
    "prefill": "T*（prefill）=",
    "token_point": "T*：处于该上下文的 token",
    "prefill_point": "T*：prefill 的平均",
    "never": "两线不相交：{why}",
    "memory": "内存",
    "memory_note": "每个序列必须保存的（KV 缓存），与整个上下文的 prefill 瞬时所需的："
    "最宽一层的 MLP（eager，一次算完）和 logits。把提示切块的引擎只需要一块的瞬时内存。",
    "kv_line": "KV 缓存",
    "mlp_memory": "MLP 激活，一层",
    "logits_last": "logits，最后一个位置",
    "logits_all": "logits，所有位置",
    "weights_line": "权重",
    "at": "上下文 {ctx} 处",
    "context_axis": "上下文，token 数",
    "flops_axis": "每 token FLOPs",
    "bytes_axis": "GiB",
    "gemm.mlp": "MLP：矩阵乘法",
    "attention_scores": "注意力分数",
    "total": "该 token 计入的全部 FLOPs",
    "mlp_share": "其中 MLP 的比例",
    "mla": "此处 MLA 按展开的头计算，与 prefill 时相同；在潜变量上解码时每个键的开销更大。",
}
