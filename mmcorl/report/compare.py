"""Start and end of every agent of several runs side by side, as rows and as a terminal table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from mmcorl.run.reader import SUPERVISION_LABELS, RunFiles, read_run

SUPERVISION_STYLES = {"ring": "bold cyan", "self": "bold yellow", "gold": "bold magenta"}


def comparison(run_dirs: Sequence[Path]) -> list[dict[str, Any]]:
    """One row per run, validation set and agent, in the order given.

    Keys: run, supervision, agent, model, set, start, end, change (accuracies in 0..1 or None), start_step,
    end_step, items (prompts evaluated), agreement_start, agreement_end, steps, steps_planned, seconds, seed,
    finished. Start is the first evaluation, end the LAST one, never the best; it is None until there are two.

    Raises:
        UserError: a folder is not a readable run folder.
    """
    return comparison_rows([read_run(path) for path in run_dirs])


def comparison_rows(runs: Sequence[RunFiles]) -> list[dict[str, Any]]:
    """`comparison` of runs that have been read already."""
    labels = run_labels(runs)
    rows = []
    for run, label in zip(runs, labels, strict=True):
        models = {str(a.get("name")): a.get("model") for a in run.config.get("agents") or () if isinstance(a, dict)}
        for set_name in run.sets or [""]:
            agreement = run.agreement(set_name)
            for agent in run.agents:
                accuracy = run.accuracy(set_name, agent)
                rows.append(
                    {
                        "run": label,
                        "supervision": run.supervision,
                        "agent": agent,
                        "model": models.get(agent),
                        "set": set_name or None,
                        "start": accuracy.start,
                        "end": accuracy.end,
                        "change": accuracy.change,
                        "start_step": accuracy.start_step,
                        "end_step": accuracy.end_step,
                        "items": accuracy.items,
                        "agreement_start": agreement.start,
                        "agreement_end": agreement.end,
                        "steps": run.steps_done,
                        "steps_planned": run.steps_planned,
                        "seconds": run.seconds,
                        "seed": run.config.get("seed"),
                        "finished": run.finished,
                    }
                )
    return rows


def run_labels(runs: Sequence[RunFiles]) -> list[str]:
    """Names that tell the runs apart: the run's name, with its folder where two runs share one."""
    names = [run.name for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({run.path.resolve().name})"
        for name, run in zip(names, runs, strict=True)
    ]


def is_within_noise(start: float, end: float, items: int | None) -> bool:
    """Whether a change is below 1.96 standard errors of a difference of two binomial shares of `items`.

    False when `items` is unknown. Both evaluations answer the same prompts, so this is on the cautious side.
    """
    if not items:
        return False
    variance = start * (1 - start) / items + end * (1 - end) / items
    return abs(end - start) <= 1.96 * math.sqrt(variance)


def comparison_table(rows: Iterable[dict[str, Any]]) -> Table:
    """The rows as a table for the terminal, grouped by run; it adapts to the width it is printed at."""
    rows = list(rows)
    table = Table(
        box=box.ROUNDED,
        border_style="dim",
        show_header=False,
        title="Accuracy from start to end",
        title_style="bold",
        title_justify="left",
        caption=_caption(rows),
        caption_justify="left",
        caption_style="dim",
    )
    table.add_column()
    table.add_row(_Body(rows))
    return table


@dataclass(frozen=True)
class _Line:
    """One start → end line: an agent's accuracy or the cohort's agreement."""

    label: str
    start: float | None
    end: float | None
    items: int | None
    style: str
    is_accuracy: bool


class _Body:
    """Draws the runs below each other with aligned columns; the track goes first when space is short."""

    FIXED = 26
    """Cells of a line beside the label and the track: indent, start, arrow, end, change and their gaps."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.rows = rows

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(40, min(options.max_width, self._label_width() + self.FIXED + 30))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        label_width = max(6, min(self._label_width(), width - self.FIXED, 28))
        track = min(30, width - label_width - self.FIXED)
        ascii_only = options.ascii_only
        several_sets = len({row["set"] for row in self.rows}) > 1
        if not self.rows:
            yield Text("No run to compare.", style="dim")
        for index, ((run, supervision), of_run) in enumerate(self._by_run()):
            if index:
                yield Text("")
            yield from self._heading(run, supervision, of_run[0], width)
            for set_name, of_set in self._by_set(of_run):
                if several_sets:
                    yield Text(f"  {set_name or '–'}", style="italic dim", overflow="ellipsis", no_wrap=True)
                for line in self._lines(of_set, SUPERVISION_STYLES.get(supervision, "bold")):
                    yield self._draw(line, label_width, track, ascii_only)

    def _by_run(self) -> list[tuple[tuple[str, str], list[dict[str, Any]]]]:
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in self.rows:
            groups.setdefault((row["run"], row["supervision"]), []).append(row)
        return list(groups.items())

    @staticmethod
    def _by_set(rows: Sequence[dict[str, Any]]) -> list[tuple[str | None, list[dict[str, Any]]]]:
        groups: dict[str | None, list[dict[str, Any]]] = {}
        for row in rows:
            groups.setdefault(row["set"], []).append(row)
        return list(groups.items())

    def _label_width(self) -> int:
        return max([cell_len(row["agent"]) for row in self.rows] + [len("agreement")])

    @staticmethod
    def _heading(run: str, supervision: str, row: dict[str, Any], width: int) -> Iterable[Text]:
        steps = row["steps"]
        if not row["finished"] and row["steps_planned"]:
            steps = f"{steps} of {row['steps_planned']}"
        facts = f"{steps} steps"
        if row["seconds"] is not None:
            facts += f", {duration(row['seconds'])}"
        what = SUPERVISION_LABELS.get(supervision, supervision)
        name = Text.assemble((run, SUPERVISION_STYLES.get(supervision, "bold")), f"  {what}")
        told = Text(facts, style="dim")
        gap = width - name.cell_len - told.cell_len
        if gap >= 2:
            yield name + Text(" " * gap) + told
        else:
            yield name
            yield Text("  ") + told

    @staticmethod
    def _lines(rows: Sequence[dict[str, Any]], style: str) -> Iterable[_Line]:
        for row in rows:
            yield _Line(row["agent"], row["start"], row["end"], row["items"], style, True)
        first = rows[0]
        if first["agreement_start"] is not None:
            yield _Line("agreement", first["agreement_start"], first["agreement_end"], None, "dim", False)

    @staticmethod
    def _draw(line: _Line, label_width: int, track: int, ascii_only: bool) -> Text:
        text = Text("  ", no_wrap=True, overflow="crop")
        name = line.label
        if cell_len(name) > label_width:
            name = set_cell_size(name, label_width - 1) + ("~" if ascii_only else "…")
        text.append(set_cell_size(name, label_width), style="" if line.is_accuracy else "dim")
        dash = "-" if ascii_only else "–"
        arrow = " > " if ascii_only else " → "
        text.append(f"  {share(line.start, dash):>5}", style="" if line.is_accuracy else "dim")
        text.append(arrow, style="dim")
        text.append(f"{share(line.end, dash):<5}", style="bold" if line.is_accuracy else "dim")
        change, change_style = _change(line, dash)
        text.append(f"  {change:>7}", style=change_style)
        if track >= 8:
            text.append("   ")
            text.append_text(_track(line, track - 3, ascii_only))
        return text


def _change(line: _Line, dash: str) -> tuple[str, str]:
    if line.start is None or line.end is None:
        return dash, "dim"
    change = line.end - line.start
    told = f"{change:+.3f}"
    if not line.is_accuracy or is_within_noise(line.start, line.end, line.items):
        return told, "dim"
    return told, "green" if change > 0 else "red" if change < 0 else "dim"


def _track(line: _Line, cells: int, ascii_only: bool) -> Text:
    """The scale 0..1 as a line of cells with a ring at the start and a dot at the end."""
    rest, path, ring, dot = ("-", "=", "o", "*") if ascii_only else ("─", "━", "○", "●")
    places = [
        None if value is None else min(cells - 1, max(0, round(value * (cells - 1))))
        for value in (line.start, line.end)
    ]
    known = [place for place in places if place is not None]
    text = Text()
    for cell in range(cells):
        if cell == places[1]:
            text.append(dot, style=line.style)
        elif cell == places[0]:
            text.append(ring, style=line.style)
        elif known and min(known) < cell < max(known):
            text.append(path, style=line.style)
        else:
            text.append(rest, style="dim")
    return text


def _caption(rows: Sequence[dict[str, Any]]) -> str:
    if all(row["set"] is None for row in rows):
        return "No validation set, so no accuracy: name one under validation.sets to see whether anything was learned."
    told = ["End is the last evaluation, never the best one."]
    if any(row["supervision"] == "gold" for row in rows):
        told.append("Only gold sees answers.")
    items = {row["items"] for row in rows if row["items"]}
    if items:
        said = str(items.pop()) if len(items) == 1 else f"{min(items)} to {max(items)}"
        told.append(f"Greedy answers to {said} prompts; a grey change is within their sampling noise.")
    return " ".join(told)


def share(value: float | None, dash: str = "–") -> str:
    """A share in 0..1 with three decimals, or a dash."""
    return dash if value is None else f"{value:.3f}"


def duration(seconds: float | None) -> str:
    """Seconds as people say them: 8.4 s, 1 min 05 s, 2 h 03 min."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
