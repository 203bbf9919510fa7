"""Shows a run while it goes: a live panel on a terminal, plain lines in a log. Everything goes to stderr."""

from __future__ import annotations

import itertools
import math
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from mmcorl.run.reader import Record, mapping, number

History = list[float]

MUTE_SHARE = 0.5
"""From this share of completions without an answer on, the plain step line says so."""
PLAIN_EVERY = 5.0
"""Seconds between two plain lines when stderr is not a terminal."""
COLUMN_GAP = 2
SPARK, SPARK_ASCII = "▁▂▃▄▅▆▇█", "_.-=+*%#"


class Progress:
    """The state of a training run, drawn live on a terminal and told in plain lines elsewhere.

    A context manager. Missing, null or non-finite metrics show as a dash; nothing here raises on a record.
    Leaving it by an exception or Ctrl-C restores the terminal, leaves the last picture standing and lets the
    exception pass. At most one live display may be open on a console, so do not open a `task` inside.

    Args:
        name: the run's name.
        agents: agent names, in the order in which they are shown.
        steps: training steps of the whole run.
        start_step: steps that are already done, when the run is resumed.
        console: where to draw; stderr when not given.
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
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._last_plain = -math.inf
        self._state = _State(name, list(agents), steps, start_step)

    def __enter__(self) -> Self:
        self._state.started = time.monotonic()
        if not self._quiet and _draws_live(self._console):
            self._live = Live(
                _Panel(self._state, self._lock),
                console=self._console,
                refresh_per_second=8,
                # Results printed to a pipe must stay there; on a terminal they would tear the picture.
                redirect_stdout=sys.stdout.isatty(),
                redirect_stderr=True,
            )
            self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._state.stopped = time.monotonic()
            if kind is not None:
                self._state.phase = "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed"
            else:
                self._state.phase = "done" if self._state.step >= self._state.steps else "stopped"
        if self._live is not None:
            self._live.stop()
            self._live = None

    def phase(self, text: str) -> None:
        """Say what is going on, such as `rollout` or `evaluate`."""
        with self._lock:
            self._state.phase = text

    def restore(self, steps: Iterable[Record], validations: Iterable[Record]) -> None:
        """Take in the records of an earlier session, so that a resumed run shows its whole trend."""
        with self._lock:
            for record in steps:
                self._state.take_step(record)
            for record in validations:
                self._state.take_validation(record)

    def step(self, record: Record, timing: Record | None = None) -> None:
        """Take in a line of metrics.jsonl, and of timings.jsonl, after a training step."""
        with self._lock:
            self._state.take_step(record)
            self._state.take_timing(timing or {})
        if self._live is None and not self._quiet:
            now = time.monotonic()
            last = self._state.step >= self._state.steps
            if last or now - self._last_plain >= PLAIN_EVERY:
                self._last_plain = now
                self._print(self._state.step_line())

    def validation(self, record: Record) -> None:
        """Take in a line of validation.jsonl after an evaluation."""
        with self._lock:
            self._state.take_validation(record)
        if self._live is None and not self._quiet:
            self._print(self._state.validation_line(record))

    def message(self, text: str) -> None:
        """Print a line above the picture, or into the log."""
        if not self._quiet:
            self._print(text)

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


class Task:
    """The handle of a running `task`."""

    def __init__(self, console: Console, description: str, total: int | None, quiet: bool) -> None:
        self._console, self._description, self._total, self._quiet = console, description, total, quiet
        self._done, self._note, self._last_plain = 0, "", -math.inf
        self._bar: RichProgress | None = None
        if not quiet and _draws_live(console):
            self._bar = RichProgress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=None, complete_style="cyan", finished_style="green"),
                MofNCompleteColumn(),
                TimeRemainingColumn(compact=True),
                TextColumn("{task.fields[note]}", markup=False, style="dim"),
                console=console,
                expand=True,
                redirect_stdout=sys.stdout.isatty(),
            )
            self._id = self._bar.add_task(description, total=total, note="")

    def advance(self, n: int = 1) -> None:
        """Count n more units as done."""
        self._done += n
        if self._bar is not None:
            self._bar.advance(self._id, n)
        else:
            self._plain()

    def update(self, text: str) -> None:
        """Say what is going on beside the bar."""
        self._note = text
        if self._bar is not None:
            self._bar.update(self._id, note=text)
        else:
            self._plain()

    def _plain(self, last: bool = False) -> None:
        now = time.monotonic()
        if self._quiet or not (last or now - self._last_plain >= PLAIN_EVERY):
            return
        self._last_plain = now
        of = f"/{self._total}" if self._total is not None else ""
        note = f"  {self._note}" if self._note else ""
        self._console.print(Text(f"{self._description}  {self._done}{of}{note}"), soft_wrap=True)

    def _start(self) -> None:
        if self._bar is not None:
            self._bar.start()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif not self._quiet:
            self._plain(last=True)


@contextmanager
def task(description: str, total: int | None, console: Console | None = None, quiet: bool = False) -> Iterator[Task]:
    """Show a bar for other long work, such as a warm start or a check of the data.

    Args:
        description: what is done.
        total: how many units there are; None when unknown.
        console: where to draw; stderr when not given.
        quiet: draw and print nothing.
    """
    handle = Task(console if console is not None else Console(stderr=True), description, total, quiet)
    handle._start()
    try:
        yield handle
    finally:
        handle._stop()


class _State:
    """What has been reported so far; the same for the live panel and the plain lines."""

    def __init__(self, name: str, agents: list[str], steps: int, start_step: int) -> None:
        self.name, self.agents, self.steps = name, agents, steps
        self.start_step = self.step = start_step
        self.phase = "starting"
        self.started = time.monotonic()
        self.stopped: float | None = None
        self.step_ended: float | None = None
        self.seconds_per_step: float | None = None
        self.latest: dict[str, Record] = {}
        self.sampled: dict[str, History] = {}
        self.vote_agreement: History = []
        self.accuracy: dict[tuple[str, str], History] = {}
        self.agreement: dict[str, History] = {}

    def take_step(self, record: Record) -> None:
        step = number(record.get("step"))
        if step is not None:
            self.step = int(step)
        for agent, told in mapping(record.get("agents")).items():
            self._know(agent)
            self.latest[agent] = mapping(told)
            _append(self.sampled.setdefault(agent, []), self.latest[agent].get("sampled_accuracy"))
        _append(self.vote_agreement, mapping(record.get("cohort")).get("agreement"))

    def take_timing(self, timing: Record) -> None:
        self.step_ended = time.monotonic()
        total = number(mapping(timing.get("seconds")).get("total"))
        if total is not None:
            old = self.seconds_per_step
            self.seconds_per_step = total if old is None else 0.8 * old + 0.2 * total

    def take_validation(self, record: Record) -> None:
        set_name = str(record.get("set", "validation"))
        for agent, told in mapping(record.get("agents")).items():
            self._know(agent)
            _append(self.accuracy.setdefault((set_name, agent), []), mapping(told).get("accuracy"))
        _append(self.agreement.setdefault(set_name, []), mapping(record.get("cohort")).get("agreement"))

    def _know(self, agent: str) -> None:
        if agent not in self.agents:
            self.agents.append(agent)

    @property
    def elapsed(self) -> float:
        return (self.stopped if self.stopped is not None else time.monotonic()) - self.started

    @property
    def remaining(self) -> float | None:
        """Seconds to the end at the mean pace of this session, evaluations and checkpoints included."""
        done = self.step - self.start_step
        # The first step stands behind the first evaluation and says little about the pace.
        if done <= 1 or self.step_ended is None:
            return None
        pace = (self.step_ended - self.started) / done
        return max(0.0, pace * (self.steps - self.step))

    def sets(self) -> list[str]:
        return list(self.agreement)

    def trend(self, agent: str) -> History:
        """Accuracy on the first validation set or of the sampled completions, whichever has more points."""
        accuracy = self.accuracy.get((self.sets()[0], agent), []) if self.agreement else []
        return max(accuracy, self.sampled.get(agent, []), key=len)

    def step_line(self) -> str:
        parts = [f"step {self.step}/{self.steps}"]
        if self.remaining is not None:
            parts.append(f"{_clock(self.remaining)} to go")
        for agent in self.agents:
            told = self.latest.get(agent, {})
            said = [
                f"{word} {_share(told.get(key))}"
                for word, key in (
                    ("reward", "reward_mean"),
                    ("sampled acc", "sampled_accuracy"),
                    ("label acc", "pseudo_label_accuracy"),
                )
                if number(told.get(key)) is not None
            ]
            if (number(told.get("unparsed_share")) or 0.0) >= MUTE_SHARE:
                said.append(f"no answer in {_share(told.get('unparsed_share'))}")
            if said:
                parts.append(f"{agent}: {', '.join(said)}")
        if self.vote_agreement:
            parts.append(f"agreement {self.vote_agreement[-1]:.2f}")
        return "  ".join(parts)

    def validation_line(self, record: Record) -> str:
        set_name = str(record.get("set", "validation"))
        parts = [f"step {record.get('step', '?')}/{self.steps}", f"validation {set_name}"]
        parts += [
            f"{agent} {_start_now(self.accuracy.get((set_name, agent), []), ' -> ', '-')}"
            for agent in self.agents
            if (set_name, agent) in self.accuracy
        ]
        if self.agreement.get(set_name):
            parts.append(f"agreement {_start_now(self.agreement[set_name], ' -> ', '-')}")
        return "  ".join(parts)


class _Panel:
    """Draws the state at any width: columns that do not fit are left out, least needed first."""

    def __init__(self, state: _State, lock: threading.Lock) -> None:
        self.state, self.lock = state, lock

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self.lock:
            lines = list(self._lines(options.max_width, options.ascii_only))
        yield from lines

    def _lines(self, width: int, ascii_only: bool) -> Iterator[Text]:
        yield Text("")
        yield self._head(width, ascii_only)
        yield self._bar(width, ascii_only)
        yield from self._table(width, ascii_only)
        for set_name in self.state.sets()[1:]:
            yield self._other_set(set_name, width, ascii_only)

    def _head(self, width: int, ascii_only: bool) -> Text:
        state = self.state
        right = Text(f"{_clock(state.elapsed)} elapsed", style="dim")
        if state.seconds_per_step is not None and width >= 80:
            right = Text(f"{state.seconds_per_step:.3g} s/step, ", style="dim") + right
        if state.stopped is None and state.remaining is not None:
            right.append(f", {_clock(state.remaining)} to go")
        left = Text(_fit(state.name, max(8, width - right.cell_len - 2), ascii_only), style="bold")
        style = {"failed": "bold red", "interrupted": "bold yellow", "done": "bold green"}.get(state.phase, "cyan")
        room = width - left.cell_len - right.cell_len - 4
        if room >= 6:
            left.append("  " + _fit(state.phase, room, ascii_only), style=style)
        return _between(left, right, width)

    def _bar(self, width: int, ascii_only: bool) -> Text:
        state = self.state
        count = f" {state.step}/{state.steps}"
        cells = max(4, width - len(count))
        share = min(1.0, state.step / state.steps) if state.steps > 0 else 1.0
        full = round(share * cells)
        done, rest = ("#", "-") if ascii_only else ("━", "─")
        colour = "green" if share >= 1 else "cyan"
        return Text.assemble((done * full, colour), (rest * (cells - full), "bright_black"), (count, "bold"))

    def _table(self, width: int, ascii_only: bool) -> Iterator[Text]:
        state = self.state
        arrow, dash = (" > ", "-") if ascii_only else (" → ", "–")
        first_set = state.sets()[0] if state.agreement else None
        name_width = max(6, min(max([cell_len(a) for a in state.agents] + [9]), 24, width // 3))
        # (heading, width, how much it is needed: the smaller the later it goes)
        columns = [
            ("accuracy", 13, 1),
            ("trend", 10, 2),
            ("sampled acc", 11, 3),
            ("reward", 6, 4),
            ("label acc", 9, 5),
            ("unparsed", 8, 6),
            ("tokens", 6, 7),
        ]
        room = width - name_width
        kept = []
        for column in sorted(columns, key=lambda column: column[2]):
            if column[1] + COLUMN_GAP > room:
                break
            room -= column[1] + COLUMN_GAP
            kept.append(column)
        shown = [column for column in columns if column in kept]
        if any(name == "trend" for name, _, _ in shown):
            shown = [(n, w + min(room, 20) if n == "trend" else w, p) for n, w, p in shown]
        head = Text(set_cell_size("", name_width), style="dim")
        for name, cells, _ in shown:
            head.append(" " * COLUMN_GAP + (name.ljust(cells) if name == "trend" else name.rjust(cells)))
        yield head
        for agent in state.agents:
            told = state.latest.get(agent, {})
            accuracy = state.accuracy.get((first_set, agent), []) if first_set is not None else []
            cells_of = {
                "accuracy": Text(_start_now(accuracy, arrow, dash)),
                "sampled acc": Text(_share(told.get("sampled_accuracy"), dash)),
                "reward": Text(_share(told.get("reward_mean"), dash)),
                "label acc": Text(_share(told.get("pseudo_label_accuracy"), dash)),
                "unparsed": Text(_share(told.get("unparsed_share"), dash)),
                "tokens": Text(_length(told.get("completion_length"), dash)),
            }
            if len(accuracy) > 1:
                cells_of["accuracy"].stylize("bold", len(cells_of["accuracy"]) - 5)
            line = Text(set_cell_size(_fit(agent, name_width, ascii_only), name_width))
            yield self._row(line, shown, cells_of, state.trend(agent), "cyan", ascii_only)
        agreement = state.agreement.get(first_set, []) if first_set is not None else []
        history = max(agreement, state.vote_agreement, key=len)
        if history:
            told_agreement = agreement or state.vote_agreement
            line = Text(set_cell_size(_fit("agreement", name_width, ascii_only), name_width), style="dim")
            cells_of = {"accuracy": Text(_start_now(told_agreement, arrow, dash), style="dim")}
            yield self._row(line, shown, cells_of, history, "magenta", ascii_only)

    @staticmethod
    def _row(
        line: Text,
        shown: Sequence[tuple[str, int, int]],
        cells_of: Mapping[str, Text],
        history: History,
        colour: str,
        ascii_only: bool,
    ) -> Text:
        row = Text(no_wrap=True, overflow="crop") + line
        for name, cells, _ in shown:
            row.append(" " * COLUMN_GAP)
            if name == "trend":
                drawn = sparkline(history, cells, ascii_only)
                row.append(drawn.ljust(cells), style=colour)
            else:
                cell = cells_of.get(name, Text(""))
                row.append(" " * max(0, cells - cell.cell_len))
                row.append_text(cell)
        return row

    def _other_set(self, set_name: str, width: int, ascii_only: bool) -> Text:
        arrow, dash = (" > ", "-") if ascii_only else (" → ", "–")
        told = [
            f"{agent} {_start_now(self.state.accuracy.get((set_name, agent), []), arrow, dash)}"
            for agent in self.state.agents
        ]
        return Text(f"{set_name}: {', '.join(told)}", style="dim", no_wrap=True, overflow="ellipsis")


def _draws_live(console: Console) -> bool:
    """Whether the console is a terminal on which a picture can be drawn again and again."""
    return console.is_terminal and not console.is_dumb_terminal


def sparkline(values: Sequence[float], width: int, ascii_only: bool = False) -> str:
    """Draw shares in 0..1 as a line of at most `width` characters; longer series are averaged in buckets."""
    if not values or width < 1:
        return ""
    marks = SPARK_ASCII if ascii_only else SPARK
    count = min(width, len(values))
    edges = [round(index * len(values) / count) for index in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    return "".join(marks[min(7, max(0, int(mean * 8)))] for mean in means)


def _append(history: History, value: object) -> None:
    known = number(value)
    if known is not None:
        history.append(known)


def _share(value: object, dash: str = "-") -> str:
    known = number(value)
    return dash if known is None else f"{known:.2f}"


def _length(value: object, dash: str) -> str:
    known = number(value)
    return dash if known is None else f"{known:.1f}" if known < 1000 else f"{known:.0f}"


def _start_now(history: History, arrow: str, dash: str) -> str:
    if not history:
        return dash
    return f"{history[0]:.3f}" if len(history) == 1 else f"{history[0]:.3f}{arrow}{history[-1]:.3f}"


def _clock(seconds: float | None) -> str:
    """m:ss below an hour, h:mm:ss above; ? when unknown."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _fit(text: str, width: int, ascii_only: bool) -> str:
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - 1)) + ("~" if ascii_only else "…")


def _between(left: Text, right: Text, width: int) -> Text:
    gap = width - left.cell_len - right.cell_len
    row = Text(no_wrap=True, overflow="crop") + left
    row.append(" " * max(1, gap))
    row.append_text(right)
    return row
