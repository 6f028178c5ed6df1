"""The Exercises page; what the judge says is in gateup.practice.messages."""

EN = {
    "title": "Exercises",
    "about": "From the formula to the kernel, judged on held-out cases. Your code runs in a "
    "process of its own, with limits, without network where the system allows it.",
    "all": "All exercises",
    "count": "{n} of {total} passed",
    "level": "level {n}",
    "numpy": "numpy",
    "torch": "torch",
    "run": "Run",
    "running": "Judging …",
    "judge_failed": "The judge itself failed: there is no verdict on this code. The terminal that "
    "runs gateup lab shows why. Your code is kept.",
    "hint": "Hint",
    "no_more_hints": "There are no more hints.",
    "hint_n": "Hint {n} of {total}",
    "solution": "Solution",
    "reset": "Begin again",
    "reset_sure": "Throw your code away and begin with the starter?",
    "yes": "Yes",
    "no": "No",
    "next": "Next exercise",
    "previous": "Previous",
    "kept": "Your code is kept in {path}",
    "editor": "Your code",
    "error.long": "too long for a solution",
    "error.long.expected": "at most {most:,} bytes",
}

ZH = {
    "title": "练习",
    "about": "从公式到内核，用预留的用例评判。你的代码在独立的进程中运行，有资源限制，"
    "在系统允许时没有网络。",
    "all": "所有练习",
    "count": "已通过 {n} / {total}",
    "level": "难度 {n}",
    "numpy": "numpy",
    "torch": "torch",
    "run": "运行",
    "running": "正在评判 …",
    "judge_failed": "评判程序自身出错，这份代码没有评判结果。原因见运行 gateup lab 的终端。"
    "代码已保存。",
    "hint": "提示",
    "no_more_hints": "没有更多提示了。",
    "hint_n": "提示 {n} / {total}",
    "solution": "答案",
    "reset": "重新开始",
    "reset_sure": "丢弃你的代码，从起始代码重新开始？",
    "yes": "是",
    "no": "否",
    "next": "下一题",
    "previous": "上一题",
    "kept": "你的代码保存在 {path}",
    "editor": "你的代码",
    "error.long": "代码太长，不能作为解答",
    "error.long.expected": "至多 {most:,} 字节",
}
