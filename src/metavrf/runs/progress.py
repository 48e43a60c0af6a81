"""What a person sees while a run goes on: a bar on a terminal, plain lines elsewhere. All on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from metavrf.errors import printable


class Progress:
    """Reports steps and figures of a run of ``total`` steps."""

    def __init__(self, label: str, total: int, start: int = 0, *, quiet: bool = False) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)
        self._bar = self._console.is_terminal and not quiet
        self._quiet = quiet
        self._label, self._total, self._first = printable(label), total, start
        self._begin = time.monotonic()

    def __enter__(self) -> Self:
        if self._bar:
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress

            self._rich = RichProgress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[figures]}", markup=False),
                TimeRemainingColumn(),
                console=self._console,
                refresh_per_second=5,
            )
            self._rich.start()
            self._task = self._rich.add_task(self._label, total=self._total, completed=self._first, figures="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar:
            self._rich.stop()

    def update(self, step: int, figures: dict[str, float], *, milestone: bool = False) -> None:
        """Show where the run is; without a terminal only milestones are printed."""
        if self._quiet or not (self._bar or milestone):
            return
        elapsed = time.monotonic() - self._begin
        rate = (step - self._first) / max(elapsed, 1e-9)
        text = "  ".join(f"{name} {value:.4g}" for name, value in figures.items()) + f"  {rate:.0f} steps/s"
        if self._bar:
            self._rich.update(self._task, completed=step, figures=text)
        else:
            left = (self._total - step) / max(rate, 1e-9)
            print(f"{self._label}: step {step}/{self._total}  {text}  {left:.0f} s left", file=sys.stderr, flush=True)
