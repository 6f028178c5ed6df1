"""The plan report's labels (what takes memory, and when) in the language of the page.

Labels are put together from a small number of pieces: "one layer: MLP, saved for backward".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Piece of a label, or a phase -> Chinese. What stands in no label of a Chinese page is no piece.
ZH: Mapping[str, str] = {
    # phases
    "load": "加载",
    "attention": "注意力",
    "mlp": "MLP",
    "logits": "logits",
    "decode": "解码",
    "compute": "计算",
    "backward": "反向传播",
    "optimizer": "优化器",
    # what takes memory
    "weights": "权重",
    "embedding": "嵌入",
    "head": "输出头",
    "norm": "归一化",
    "norms": "归一化",
    "MLP": "MLP",
    "KV cache": "KV 缓存",
    "compute buffer": "计算缓冲区",
    "hidden states": "隐藏状态",
    "hidden states and their gradients": "隐藏状态及其梯度",
    "logits and loss": "logits 与损失",
    "one token": "一个 token",
    "one layer": "一层",
    "other layers": "其余各层",
    "layer inputs": "各层输入",
    "checkpointed": "检查点",
    "saved for backward": "为反向传播保存",
    "gradients": "梯度",
    "gradients in passing": "途中的梯度",
    "gradients of the embedding": "嵌入的梯度",
    "final norm": "最后的归一化",
    "one matrix": "一个矩阵",
    "dequantised": "反量化后",
    "adapter": "适配器",
    "adapters": "适配器",
    "adapter inputs": "适配器输入",
    "not merged": "未合并",
    "in passing": "途中",
    "autocast copies of the adapters": "适配器的 autocast 副本",
    "experts and router with adapters": "带适配器的专家与路由器",
    "expert update in passing": "途中的专家更新",
    "fp32 master weights": "fp32 主权重",
    "FSDP": "FSDP",
    "the unit in use": "正在使用的单元",
    "gathered": "已汇集",
}
_MARKS = {": ": "：", ", ": "，"}
_OPTIMIZER = "optimizer: "


def plan_words(label: str, language: str) -> str:
    """A label or a phase of the plan's report; as it is where a piece of it has no translation."""
    if language != "zh":
        return label
    if label.startswith(_OPTIMIZER):  # its name is the same everywhere
        return ZH["optimizer"] + "：" + label.removeprefix(_OPTIMIZER)
    pieces = re.split(r"(: |, )", label)
    words = [_MARKS.get(p) or ZH.get(p) or _as_is(p) for p in pieces]
    return label if None in words else "".join(w for w in words if w is not None)


def _as_is(piece: str) -> str | None:
    """Formats (fp32) are written alike."""
    return piece if re.fullmatch(r"[a-z]+\d+", piece) else None
