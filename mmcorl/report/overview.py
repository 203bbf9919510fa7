"""One picture of a run and of runs compared with it, for a README."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmcorl.errors import UserError
from mmcorl.report.charts import legend_keys
from mmcorl.report.compare import run_labels
from mmcorl.report.curves import accuracy_series, agent_colours, agreement_series
from mmcorl.run.reader import read_run

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#B84A92", "#3A9BD9", "#C98A00", "#6A4FB3", "#6E6E6E")
"""Okabe and Ito's colours, the pale ones darkened for a white page; the same order as in theme.css."""
INK, GREY = "#22252b", "#8a8f98"
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.8)), (0, (6, 2, 1.2, 2)))


def overview_png(run_dir: Path, others: Sequence[Path], path: Path) -> Path:
    """Draw accuracy and agreement on the first validation set, this run solid and the others dashed.

    Raises UserError: a folder is not a readable run folder, or the run is not evaluated yet.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    runs = [read_run(folder) for folder in [run_dir, *others]]
    if not runs[0].sets:
        raise UserError(f"{run_dir} has no evaluation to draw; let the run reach its first validation.")
    set_name = runs[0].sets[0]
    kinds = [run.supervision_label for run in runs]
    labels = [
        kind if kinds.count(kind) == 1 else f"{label} ({kind})"
        for kind, label in zip(kinds, run_labels(runs), strict=True)
    ]
    colours = agent_colours(runs)
    accuracy = accuracy_series(set_name, runs, labels, colours)
    agreement = [line for line in agreement_series(set_name, runs, labels, colours) if line.run]
    figure = Figure(figsize=(10, 4.1), dpi=160, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    titles = f"Accuracy on {set_name}", "Agreement between the agents"
    for axes, title, lines in zip(figure.subplots(1, 2, sharex=True), titles, (accuracy, agreement), strict=True):
        for line in lines:
            axes.plot(
                [step for step, _ in line.points],
                [value for _, value in line.points],
                color=PALETTE[line.colour % len(PALETTE)] if lines is accuracy else INK if line.strong else GREY,
                linestyle=DASHES[line.dash % len(DASHES)],
                linewidth=2.4 if line.strong else 1.7,
                marker="o",
                markersize=4 if line.strong and lines is accuracy else 0,
            )
        axes.set_title(title, loc="left", fontweight="bold", color=INK, parse_math=False)
        axes.set_ylim(-0.02, 1.03)
        axes.set_xlabel("training step", color=GREY)
        axes.tick_params(colors=GREY, length=0)
        axes.grid(axis="y", color="#e4e6ea", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color("#c9ccd2")
    keys = legend_keys(accuracy)
    marks = [
        Line2D(
            [],
            [],
            color=INK if key.colour is None else PALETTE[key.colour % len(PALETTE)],
            linestyle="-" if key.block else DASHES[key.dash % len(DASHES)],
            linewidth=5 if key.block else 1.9,
            solid_capstyle="butt",
        )
        for key in keys
    ]
    columns = min(max(1, len(keys)), 5)
    legend = figure.legend(
        marks, [""] * len(keys), loc="outside lower center", ncols=columns, frameon=False, labelcolor=INK
    )
    for text, key in zip(legend.get_texts(), keys, strict=True):
        text.set_parse_math(False)
        text.set_text(key.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
