"""What a sweep found: the table in the terminal and as Markdown, CSV and JSON, and a page with the curves."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mmcorl.config import methods
from mmcorl.report.charts import GROUP_METRICS, LABEL_METRICS
from mmcorl.report.run_page import environment
from mmcorl.report.svg import COLOURS, LARGE, Chart, Series, line_chart
from mmcorl.run.reader import Points, RunFiles, read_run
from mmcorl.tools import sweep
from mmcorl.tools.sweep import Planned, Row, Spread

SHORT = {
    "pseudo_label_accuracy": "label acc",
    "reward_mean": "reward",
    "reward_std": "spread",
    "completion_length": "tokens each",
    "completions": "completions",
    "tokens": "tokens",
    "agent_seconds": "agent-s",
}
"""Training columns of the table; the page and the JSON have all."""
WIDTH = 132
"""Characters that the table needs, however narrow the terminal says it is."""
NOTES = (
    "Accuracy and agreement are greedy, at the end of training (never the best step), means over the agents; "
    "± is the standard deviation over the seeds.",
    f"Label acc, reward, spread and tokens each are means over the last {sweep.LAST} training steps.",
    "Completions and tokens are all that were sampled, votes that are not trained among them; agent-s is the time in "
    "which agents sampled and updated, so that methods can be compared at equal cost.",
)


def columns(table: Sequence[Row]) -> dict[str, str]:
    """Keys of the shown columns with their headings, sets first."""
    known = dict.fromkeys(key for row in table for key in row)
    sets = [key.removeprefix("accuracy/") for key in known if key.startswith("accuracy/") and key.count("/") == 1]
    shown: dict[str, str] = {}
    for name in sets:
        shown[f"start/{name}"] = f"{name}: start"
        shown[f"accuracy/{name}"] = "end"
        shown |= {key: key.removeprefix(f"accuracy/{name}/") for key in known if key.startswith(f"accuracy/{name}/")}
        shown[f"agreement/{name}"] = "agreement"
    return shown | {key: heading for key, heading in SHORT.items() if key in known}


def cells(row: Row, shown: Iterable[str]) -> list[str]:
    """The numbers of a row in the digits that their size deserves; accuracies with their spread."""
    return [_cell(key, row.get(key)) for key in shown]


def _cell(key: str, value: Spread | None) -> str:
    if value is None:
        return "–"
    if key in ("completions", "tokens", "agent_seconds"):
        return f"{value.mean:,.0f}"
    digits = 1 if key == "completion_length" else 3
    spread = f" ±{value.deviation:.{digits}f}" if key.startswith("accuracy/") and value.deviation is not None else ""
    return f"{value.mean:.{digits}f}{spread}"


def print_table(table: Sequence[Row]) -> None:
    """To the terminal: accuracy of each agent stays in the files."""
    shown = {key: heading for key, heading in columns(table).items() if key.count("/") < 2 and key != "completions"}
    drawn = Table(caption="\n".join(NOTES), caption_justify="left", box=box.SIMPLE_HEAD)
    drawn.add_column("method", no_wrap=True)
    for heading in ("seeds", *shown.values()):
        drawn.add_column(heading.replace(" ", "\n").replace(":", ""), justify="right", no_wrap=True)
    for row in table:
        drawn.add_row(str(row["method"]), str(len(row["seeds"])), *cells(row, shown))
    Console(width=max(Console().width, WIDTH)).print(drawn)


def write(out: Path, planned: Sequence[Planned], table: Sequence[Row]) -> Path:
    """Write sweep.json, sweep.md, sweep.csv and sweep.html into `out`; returns the page."""
    out.mkdir(parents=True, exist_ok=True)
    shown = columns(table)
    (out / "sweep.json").write_text(json.dumps(sweep.record(table), indent=1) + "\n")
    lines = [f"| method | seeds | {' | '.join(shown.values())} |", f"|---|{'---:|' * (len(shown) + 1)}"]
    lines += [f"| {row['method']} | {len(row['seeds'])} | {' | '.join(cells(row, shown))} |" for row in table]
    (out / "sweep.md").write_text("\n".join([*lines, "", *(f"- {note}" for note in NOTES)]) + "\n")
    with (out / "sweep.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "seeds", *(part for key in shown for part in (key, f"{key} sd"))])
        for row in table:
            numbers = [value for key in shown for value in _numbers(row.get(key))]
            writer.writerow([row["method"], len(row["seeds"]), *numbers])
    page = out / "sweep.html"
    page.write_text(_page(planned, table, shown))
    return page


def _numbers(value: Spread | None) -> tuple[Any, Any]:
    return ("", "") if value is None else (value.mean, "" if value.deviation is None else value.deviation)


def _page(planned: Sequence[Planned], table: Sequence[Row], shown: Mapping[str, str]) -> str:
    runs: dict[str, list[RunFiles]] = {}
    for one in planned:
        if one.done:
            runs.setdefault(one.method, []).append(read_run(one.path))
    return (
        environment()
        .get_template("sweep.html")
        .render(
            title=_title(planned),
            notes=NOTES,
            run_notes=planned[0].config.notes,
            headings=["method", "seeds", *shown.values()],
            rows=[[row["method"], str(len(row["seeds"])), *cells(row, shown)] for row in table],
            methods=[(name, methods.describe(name)) for name in runs],
            charts=_charts(runs),
        )
    )


def _title(planned: Sequence[Planned]) -> str:
    count = len(dict.fromkeys(one.method for one in planned))
    seeds = len(dict.fromkeys(one.seed for one in planned))
    return f"{count} methods, {seeds} seed{'s' if seeds != 1 else ''}"


def _charts(runs: Mapping[str, Sequence[RunFiles]]) -> list[Chart]:
    sets = dict.fromkeys(name for own in runs.values() for run in own for name in run.sets)
    drawn = []
    for name in sets:
        drawn.append(
            _chart(f"Accuracy on {name}", "Greedy, mean of agents and seeds.", runs, _accuracy(name), marks=True)
        )
        drawn.append(_chart(f"Agreement on {name}", "Mean of pairs and seeds.", runs, _agreement(name), marks=True))
    for key, title, note in (*LABEL_METRICS, *GROUP_METRICS[:2]):
        drawn.append(_chart(title, note, runs, _trained(key), shares=key != "reward_mean" and key != "reward_std"))
    drawn.append(_chart("Tokens per completion", "", runs, _trained("completion_length"), shares=False))
    return [chart for chart in drawn if chart is not None]


Curves = Callable[[RunFiles], list[Points]]


def _accuracy(name: str) -> Curves:
    return lambda run: [run.validation_series(name, agent) for agent in run.agents]


def _agreement(name: str) -> Curves:
    return lambda run: [run.agreement_series(name)]


def _trained(key: str) -> Curves:
    return lambda run: [run.agent_series(agent, key) for agent in run.agents]


def _chart(
    title: str,
    note: str,
    runs: Mapping[str, Sequence[RunFiles]],
    curves: Curves,
    *,
    shares: bool = True,
    marks: bool = False,
) -> Chart | None:
    series = []
    for number, (method, own) in enumerate(runs.items()):
        points = mean_curve([points for run in own for points in curves(run)])
        series.append(Series(method, points, number % COLOURS, number // COLOURS, marks=marks))
    return line_chart(title, series, note=note, shares=shares, frame=LARGE)


def mean_curve(curves: Sequence[Points]) -> Points:
    """The mean of several curves at each step that any of them has."""
    at: dict[int, list[float]] = {}
    for points in curves:
        for step, value in points:
            at.setdefault(step, []).append(value)
    return [(step, fmean(values)) for step, values in sorted(at.items())]
