"""The Handbook page: its chapters bring their own texts."""

EN = {
    "title": "Handbook",
    "about": "The feed-forward network of Llama-family models in one chapter. Every number in it "
    "is computed by gateup.",
    "contents": "Contents",
    "notebook": "Download the notebook",
    "printable": "Download a page to print",
    "running": "The experiment is running …",
}

ZH = {
    "title": "手册",
    "about": "用一章讲清 Llama 系列模型的前馈网络。其中每个数字都由 gateup 计算。",
    "contents": "目录",
    "notebook": "下载 notebook",
    "printable": "下载打印版",
    "running": "实验运行中……",
}
