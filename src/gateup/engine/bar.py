"""A progress bar on stderr for loads that take long enough for someone to wonder."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

DELAY = 1.0  # seconds without a bar: loads of small models show none


class LoadingBar:
    """Called with (bytes done, bytes in all). Shows itself on a terminal, after DELAY."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.start = time.monotonic()
        self.bar: Any = None
        self.task: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self.bar is None:
            late = time.monotonic() - self.start > DELAY
            if not late or sys.stderr is None or not sys.stderr.isatty():
                return
            self._open(total)
        self.bar.update(self.task, completed=done)

    def _open(self, total: int) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

        console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            console=console,
            transient=True,
        )
        self.task = self.bar.add_task(escape(self.label), total=total)
        self.bar.start()

    def __enter__(self) -> LoadingBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.stop()
