"""What the judge says in both languages: statuses, guards, headings."""

from __future__ import annotations

from gateup.practice.exercise import Text
from gateup.practice.sandbox import guards

STATUS = {
    "passed": Text("passed", "通过"),
    "wrong structure": Text("another kind of answer was expected", "答案的种类不对"),
    "wrong shape": Text("wrong shape", "形状不对"),
    "wrong dtype": Text("wrong dtype", "dtype 不对"),
    "nan": Text("NaN where there is none", "出现了不该有的 NaN"),
    "wrong value": Text("wrong value", "数值不对"),
    "over budget": Text("over the budget", "超出预算"),
    "error": Text("an exception", "抛出异常"),
    "timeout": Text("too slow, or endless", "超时或死循环"),
    "memory": Text("out of memory", "内存超限"),
    "crashed": Text("the process crashed", "进程崩溃"),
    "no answer": Text("no answer", "没有答案"),
    "not run": Text("not run", "未运行"),
}

RETURNED_NOTHING = Text(
    "The function returned None: is there a `return`?", "函数返回了 None：是否漏写了 `return`？"
)
UNUSABLE = Text("This cannot be an answer: {}.", "这不能作为答案：{}。")
ENDED = Text(
    "The process ended (exit code {}) before it answered.",
    "进程在给出答案之前就结束了（退出码 {}）。",
)
CLOSED = Text(
    "The code closed the descriptor that the judge and it talk through, and ran on: no answer can "
    "come, so the judge ended it.",
    "代码关闭了与评判程序通信的描述符，却继续运行：不可能再有答案，评判程序因此将其终止。",
)
SIGNAL = Text("The process was ended by {}.", "进程被信号 {} 终止。")
TIME_LIMIT = Text("The limit is {:g} s for all cases.", "所有用例合计限时 {:g} 秒。")
MEMORY_LIMIT = Text("The limit is {} MiB.", "内存上限为 {} MiB。")
GARBLED = Text(
    "What came back is no answer: {}. Does the code write to descriptors it does not own?",
    "返回的内容不是答案：{}。代码是否向不属于它的描述符写了数据？",
)

GUARDS = {
    guards.ISOLATED: Text("own process, empty environment", "独立进程，环境变量为空"),
    guards.LIMITS: Text("limits on CPU, memory, files, processes", "限制 CPU、内存、文件与进程数"),
    guards.UID: Text("user without rights", "无特权用户"),
    guards.PRIVILEGES: Text("no new privileges", "不能获得新特权"),
    guards.CALLS: Text(
        "no sockets, processes, signals, tracing (seccomp)",
        "禁止套接字、进程、信号与跟踪（seccomp）",
    ),
    guards.FILES: Text(
        "reads Python's files alone, writes in its own folder (Landlock)",
        "只能读 Python 的文件，只能写自己的文件夹（Landlock）",
    ),
    guards.NETWORK: Text("network of its own, without a way out", "独立的网络，没有出口"),
    guards.PROCESSES: Text(
        "sees and ends with its own processes", "只看得见自己的进程，并一同结束"
    ),
    guards.MOUNTS: Text("solutions hidden, small disk of its own", "答案不可见，独立的小磁盘"),
}

COLON = Text(": ", "：")
SEMICOLON = Text("; ", "；")

# Words of the console's tables and lines.
EXERCISE = Text("exercise", "练习")
TITLE = Text("title", "标题")
LEVEL = Text("level", "难度")
STATE = Text("state", "状态")
NEEDS = Text("needs", "需要")
CASE = Text("case", "用例")
RESULT = Text("result", "结果")
TIME = Text("ms", "毫秒")
TRIED = Text("tried {}×", "试过 {} 次")
DONE = Text("passed", "已通过")
WITH_HINTS = Text(", hints seen: {}", "，看过 {} 条提示")
WITH_SOLUTION = Text(", solution seen", "，看过答案")
PASSED_ALL = Text("passed: all {} cases in {:.2f} s", "通过：全部 {} 个用例，用时 {:.2f} 秒")
FAILED = Text("not yet: {} of {} cases passed", "尚未通过：{} / {} 个用例通过")
WHERE = Text("at {} of the answer", "答案的 {} 处")
SHAPES = Text("shape {}, expected {}", "形状为 {}，应为 {}")
DTYPES = Text("dtype {}, expected {}", "dtype 为 {}，应为 {}")
VALUES = Text("got {}, expected {}", "得到 {}，应为 {}")
AT = Text(
    "at {}: got {}, expected {} (permitted error {:.2g})",
    "在 {} 处：得到 {}，应为 {}（允许误差 {:.2g}）",
)
ERRORS = Text(
    "largest error: absolute {:.3g}, relative {:.3g}", "最大误差：绝对 {:.3g}，相对 {:.3g}"
)
NANS = Text("{} NaN", "{} 个 NaN")
SELF_REPORTED = Text("self-reported", "自行报告")
LINE = Text("line {}", "第 {} 行")
PRINTED = Text("your code printed", "你的代码输出了")
CUT = Text("(cut at {} KiB)", "（截断于 {} KiB）")
HINT = Text("hint {} of {}: {}", "提示 {}/{}：{}")
SEE_HINT = Text("a hint: gateup practice hint {}", "查看提示：gateup practice hint {}")
AGAIN = Text("the same cases again: --seed {}", "重现同样的用例：--seed {}")
IN_FORCE = Text("guards in force: {}", "生效的防护：{}")
NOT_IN_FORCE = Text("not in force: {}", "未生效：{}")
USAGE = Text("CPU {:.2f} s, {:.0f} MiB at most", "CPU {:.2f} 秒，内存峰值 {:.0f} MiB")
WRITTEN = Text(
    "your file: {}   then: gateup practice test {}", "你的文件：{}   然后：gateup practice test {}"
)
COUNT = Text("{} of {} passed", "已通过 {} / {}")
KEPT = Text("kept in {}", "保存于 {}")
OVERWRITE = Text(
    "{} is there already. Begin again (the old file is kept as .bak)?",
    "{} 已经存在。重新开始吗（旧文件保留为 .bak）？",
)
NOT_COUNTED = Text(
    "With a chosen seed it does not count: once more without --seed.",
    "指定了种子，不计入进度：请去掉 --seed 再测一次。",
)
