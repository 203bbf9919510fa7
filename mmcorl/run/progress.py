"""Progress of a run: a live panel on a terminal, plain lines in a log. Everything goes to stderr."""

from __future__ import annotations

import itertools
import math
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column, Table
from rich.text import Text

from mmcorl.run.reader import Record, mapping, number

MUTE_SHARE = 0.5
"""Share of completions without an answer from which the plain step line mentions it."""
PLAIN_EVERY = 5.0
"""Least seconds between two plain lines."""
TREND = 12
"""Characters of a trend."""
METRICS = {
    "sampled acc": "sampled_accuracy",
    "reward": "reward_mean",
    "label acc": "pseudo_label_accuracy",
    "unparsed": "unparsed_share",
    "tokens": "completion_length",
}
"""Columns of the panel after the trend, with their keys in metrics.jsonl; a narrow terminal drops the last ones."""
PHASE_STYLES = {"failed": "bold red", "interrupted": "bold yellow", "done": "bold green"}


class Progress:
    """A training run as a live panel on a terminal, as plain lines elsewhere.

    A context manager. Missing, null or non-finite metrics appear as a dash; no record raises. Leaving it by an
    exception or Ctrl-C restores the terminal, leaves the last panel visible and lets the exception pass. A console
    holds one live display at a time, so do not open a `task` inside.

    Args:
        name: the run's name.
        agents: agent names, in the order of the rows.
        steps: training steps of the whole run.
        start_step: steps already done, when the run is resumed.
        console: where to draw; stderr by default.
        quiet: draw and print nothing.
    """

    def __init__(
        self,
        name: str,
        agents: Sequence[str],
        steps: int,
        start_step: int = 0,
        console: Console | None = None,
        quiet: bool = False,
    ) -> None:
        self._console = console if console is not None else Console(stderr=True)
        self._quiet = quiet
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._last_plain = -math.inf
        self._agents, self._steps, self._step = list(agents), steps, start_step
        self._latest: dict[str, Record] = {}
        self._sampled: dict[str, list[float]] = {}
        self._votes: list[float] = []
        """Agreement of the votes, step by step."""
        self._accuracy: dict[tuple[str, str], list[float]] = {}
        self._agreement: dict[str, list[float]] = {}
        """Of each validation set, evaluation by evaluation."""
        self._bar = Bar(
            TextColumn("{task.description}", "bold", markup=False, table_column=_column(max_width=24)),
            TextColumn("{task.fields[phase]}", "cyan", markup=False, table_column=_column(width=16)),
            BarColumn(bar_width=None, complete_style="cyan", finished_style="green"),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("left", "dim"),
            console=self._console,
            expand=True,
            # The mean pace of the session, evaluations and checkpoints included.
            speed_estimate_period=math.inf,
        )
        self._task = self._bar.add_task(name, total=steps, completed=start_step, phase="starting")

    def __enter__(self) -> Self:
        if not self._quiet and _draws_live(self._console):
            self._live = Live(
                console=self._console,
                get_renderable=self._panel,
                refresh_per_second=8,
                # Results printed to a pipe must stay there; on a terminal they would tear the panel.
                redirect_stdout=sys.stdout.isatty(),
                redirect_stderr=True,
            )
            self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.phase("interrupted" if issubclass(kind, KeyboardInterrupt) else "failed")
        else:
            self.phase("done" if self._step >= self._steps else "stopped")
        self._bar.stop_task(self._task)
        if self._live is not None:
            self._live.stop()
            self._live = None

    def phase(self, text: str) -> None:
        """Show the current phase, such as `rollout` or `evaluate`."""
        with self._lock:
            self._bar.update(self._task, phase=text)

    def restore(self, steps: Iterable[Record], validations: Iterable[Record]) -> None:
        """Add the records of an earlier session, so that a resumed run shows its whole trend."""
        with self._lock:
            for record in steps:
                self._add_step(record)
            for record in validations:
                self._add_validation(record)

    def step(self, record: Record) -> None:
        """Add a line of metrics.jsonl after a training step."""
        with self._lock:
            self._add_step(record)
            self._bar.update(self._task, completed=self._step)
        if self._live is None and not self._quiet:
            now = time.monotonic()
            if self._step >= self._steps or now - self._last_plain >= PLAIN_EVERY:
                self._last_plain = now
                self.message(self._step_line())

    def validation(self, record: Record) -> None:
        """Add a line of validation.jsonl after an evaluation."""
        with self._lock:
            set_name = self._add_validation(record)
        if self._live is None:
            parts = [f"step {record.get('step', '?')}/{self._steps}", f"validation {set_name}"]
            parts += [
                f"{agent} {_start_now(values, ' -> ')}"
                for agent in self._agents
                if (values := self._accuracy.get((set_name, agent))) is not None
            ]
            if self._agreement.get(set_name):
                parts.append(f"agreement {_start_now(self._agreement[set_name], ' -> ')}")
            self.message("  ".join(parts))

    def message(self, text: str) -> None:
        """Print a line above the panel, or into the log."""
        if not self._quiet:
            self._console.print(Text(text), soft_wrap=True)

    def _add_step(self, record: Record) -> None:
        step = number(record.get("step"))
        self._step = self._step if step is None else int(step)
        for agent, metrics in self._rows(record):
            self._latest[agent] = mapping(metrics)
            _append(self._sampled.setdefault(agent, []), self._latest[agent].get("sampled_accuracy"))
        _append(self._votes, mapping(record.get("cohort")).get("agreement"))

    def _add_validation(self, record: Record) -> str:
        set_name = str(record.get("set", "validation"))
        for agent, metrics in self._rows(record):
            _append(self._accuracy.setdefault((set_name, agent), []), mapping(metrics).get("accuracy"))
        _append(self._agreement.setdefault(set_name, []), mapping(record.get("cohort")).get("agreement"))
        return set_name

    def _rows(self, record: Record) -> list[tuple[str, Any]]:
        """Return the agents of a record with their values; new agents get a row."""
        rows = mapping(record.get("agents"))
        self._agents += [agent for agent in rows if agent not in self._agents]
        return list(rows.items())

    def _step_line(self) -> str:
        parts = [f"step {self._step}/{self._steps}"]
        remaining = self._bar.tasks[0].time_remaining
        if remaining is not None and self._step < self._steps:
            minutes, seconds = divmod(round(remaining), 60)
            parts.append(f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d} left")
        for agent in self._agents:
            metrics = self._latest.get(agent, {})
            values = {word: number(metrics.get(METRICS[word])) for word in ("reward", "sampled acc", "label acc")}
            texts = [f"{word} {value:.2f}" for word, value in values.items() if value is not None]
            if (unparsed := number(metrics.get("unparsed_share")) or 0.0) >= MUTE_SHARE:
                texts.append(f"no answer in {unparsed:.2f}")
            if texts:
                parts.append(f"{agent}: {', '.join(texts)}")
        if self._votes:
            parts.append(f"agreement {self._votes[-1]:.2f}")
        return "  ".join(parts)

    def _panel(self) -> Group:
        with self._lock:
            phase = str(self._bar.tasks[0].fields["phase"])
            column = self._bar.columns[1]
            assert isinstance(column, TextColumn)
            column.style = PHASE_STYLES.get(phase, "cyan")
            tables = (self._table(list(METRICS)[:count]) for count in range(len(METRICS), -1, -1))
            wide = self._console.options.update_width(10_000)
            fitting = (t for t in tables if self._console.measure(t, options=wide).maximum <= self._console.width)
            table = next(fitting, self._table([]))
            others = [
                f"{name}: {', '.join(f'{a} {_start_now(self._accuracy.get((name, a), []))}' for a in self._agents)}"
                for name in list(self._agreement)[1:]
            ]
            return Group(
                "", self._bar, table, *(Text(line, "dim", no_wrap=True, overflow="ellipsis") for line in others)
            )

    def _table(self, shown: Sequence[str]) -> Table:
        """Return the accuracy on the first validation set, trends and the chosen metrics of the last step."""
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        table.add_column("", no_wrap=True, overflow="ellipsis", max_width=24)
        for head in ("accuracy", "trend", *shown):
            table.add_column(head, justify="left" if head == "trend" else "right", no_wrap=True)
        first = next(iter(self._agreement), "")
        for agent in self._agents:
            metrics = self._latest.get(agent, {})
            accuracy, sampled = self._accuracy.get((first, agent), []), self._sampled.get(agent, [])
            trend = Text(sparkline(max(accuracy, sampled, key=len), TREND), "cyan")
            numbers = [_metric(head, metrics.get(METRICS[head])) for head in shown]
            table.add_row(Text(agent), _start_now(accuracy), trend, *numbers)
        agreement = self._agreement.get(first) or self._votes
        if agreement:
            trend = Text(sparkline(max(agreement, self._votes, key=len), TREND), "magenta")
            table.add_row("agreement", _start_now(agreement), trend, style="dim")
        return table


class Task:
    """The handle of a running `task`."""

    def __init__(self, console: Console, description: str, total: int | None, quiet: bool) -> None:
        self._console, self._description, self._total, self._quiet = console, description, total, quiet
        self._done, self._note, self._last_plain, self._printed = 0, "", -math.inf, ""
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None, complete_style="cyan", finished_style="green"),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[note]}", markup=False, style="dim"),
            console=console,
            expand=True,
            redirect_stdout=sys.stdout.isatty(),
            disable=quiet or not _draws_live(console),
        )
        self._id = self._bar.add_task(description, total=total, note="")

    def advance(self, n: int = 1) -> None:
        """Count n more units as done."""
        self._done += n
        self._bar.advance(self._id, n)
        self._plain()

    def update(self, text: str, n: int = 0) -> None:
        """Show a note beside the bar and count n more units as done."""
        self._done += n
        self._note = text
        self._bar.update(self._id, note=text, advance=n)
        self._plain()

    def _plain(self, last: bool = False) -> None:
        now = time.monotonic()
        if self._quiet or not self._bar.disable or not (last or now - self._last_plain >= PLAIN_EVERY):
            return
        self._last_plain = now
        count = f"{self._done}/{self._total}" if self._total is not None else f"{self._done}"
        line = f"{self._description}  {count}  {self._note}".rstrip()
        if line != self._printed:
            self._printed = line
            self._console.print(Text(line), soft_wrap=True)


@contextmanager
def task(description: str, total: int | None, console: Console | None = None, quiet: bool = False) -> Iterator[Task]:
    """Show a bar for other long work, such as a warm start or a check of the data.

    Args:
        description: what is done.
        total: number of units; None when unknown.
        console: where to draw; stderr by default.
        quiet: draw and print nothing.
    """
    handle = Task(console if console is not None else Console(stderr=True), description, total, quiet)
    with handle._bar:
        try:
            yield handle
        finally:
            handle._plain(last=True)


def sparkline(values: Sequence[float], width: int) -> str:
    """Return shares in 0..1 as at most `width` characters; longer series are averaged in buckets."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [round(index * len(values) / count) for index in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    return "".join("▁▂▃▄▅▆▇█"[min(7, max(0, int(mean * 8)))] for mean in means)


def _draws_live(console: Console) -> bool:
    """Return whether the console is a terminal that can redraw and show the characters of the panel."""
    return console.is_terminal and not console.is_dumb_terminal and console.encoding.lower().startswith("utf")


def _column(**size: int) -> Column:
    return Column(no_wrap=True, overflow="ellipsis", **size)  # type: ignore[arg-type]


def _append(history: list[float], value: object) -> None:
    known = number(value)
    if known is not None:
        history.append(known)


def _metric(head: str, value: object) -> str:
    known = number(value)
    return "–" if known is None else f"{known:.1f}" if head == "tokens" else f"{known:.2f}"


def _start_now(history: Sequence[float], arrow: str = " → ") -> str:
    if len(history) < 2:
        return f"{history[0]:.3f}" if history else "-" if arrow.isascii() else "–"
    return f"{history[0]:.3f}{arrow}{history[-1]:.3f}"
