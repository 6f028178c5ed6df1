"""What surrounds every page."""

EN = {
    "title": "gateup lab",
    "about": "The gated feed-forward network of Llama-family models, to look at, change and "
    "practise. Every number is computed by gateup on this machine.",
    "language": "中文",
    "theme": "Light or dark",
    "home": "All pages",
    "model": "Model",
    "upload": "Your own config.json",
    "uploaded": "{name} is loaded",
    "how": "How it is computed",
    "source": "source",
    "exact": "exact: follows from shapes and formats",
    "bound": "bound: never more than this",
    "estimate": "estimate: a model of an allocator or engine",
    "page_error": "This page cannot be shown with these settings.",
    "expected": "expected",
    "remedy": "remedy",
    "where": "where",
    "legend": "= exact · ≤ bound · ≈ estimate",
    "gone": "{name} is not known to this run of the lab; {default} is shown instead.",
    "too_large": "The file is larger than 1 MB, the limit for a config.json.",
}

ZH = {
    "title": "gateup 实验室",
    "about": "Llama 系列模型的门控前馈网络：可以看、可以改、可以练。"
    "每个数字都由本机上的 gateup 计算。",
    "language": "English",
    "theme": "浅色或深色",
    "home": "所有页面",
    "model": "模型",
    "upload": "自己的 config.json",
    "uploaded": "已载入 {name}",
    "how": "如何算出",
    "source": "来源",
    "exact": "精确值：由形状和格式直接得出",
    "bound": "上界：不会超过此值",
    "estimate": "估计值：对分配器或引擎的建模",
    "page_error": "以这些设置无法显示本页。",
    "expected": "应为",
    "remedy": "解决办法",
    "where": "位置",
    "legend": "= 精确 · ≤ 上界 · ≈ 估计",
    "gone": "本次运行的实验室里没有 {name}；改为显示 {default}。",
    "too_large": "文件超过 1 MB，这是 config.json 的上限。",
}
