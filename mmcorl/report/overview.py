"""One picture of a run beside others, for a README."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmcorl.errors import UserError
from mmcorl.report.charts import agent_colours
from mmcorl.report.compare import run_labels
from mmcorl.run.reader import SUPERVISION_LABELS, read_run

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#B84A92", "#3A9BD9", "#C98A00", "#6A4FB3", "#6E6E6E")
"""Okabe and Ito's colours, the pale ones darkened for a white page; the same order as in the report."""
INK, GREY = "#22252b", "#8a8f98"


def overview_png(run_dir: Path, others: Sequence[Path], path: Path) -> Path:
    """Draw accuracy and agreement on the first validation set, this run solid and the others dashed.

    Raises:
        UserError: a folder is not a readable run folder, or the run has not been evaluated yet.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    runs = [read_run(one) for one in [run_dir, *others]]
    if not runs[0].sets:
        raise UserError(f"{run_dir} has no evaluation to draw; let the run reach its first validation.")
    set_name = runs[0].sets[0]
    labels = run_labels(runs)
    colours = agent_colours(runs)
    dashes: list[Any] = ["-", (0, (5, 2)), (0, (1.2, 1.8)), (0, (6, 2, 1.2, 2))]
    figure = Figure(figsize=(10, 4.1), dpi=160, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    accuracy, agreement = figure.subplots(1, 2, sharex=True)
    for index in range(len(runs) - 1, -1, -1):
        style = {
            "linestyle": dashes[index % len(dashes)],
            "linewidth": 2.4 if index == 0 else 1.7,
            "zorder": 9 - index,
        }
        for agent in runs[index].agents:
            colour = PALETTE[colours[agent] % len(PALETTE)]
            steps, values = _columns(runs[index].validation_series(set_name, agent))
            accuracy.plot(steps, values, color=colour, marker="o", markersize=4 if index == 0 else 0, **style)
        steps, values = _columns(runs[index].agreement_series(set_name))
        agreement.plot(steps, values, color=INK if index == 0 else GREY, **style)
    accuracy.set_title(f"Accuracy on {set_name}", loc="left", fontweight="bold", color=INK, parse_math=False)
    agreement.set_title("Agreement between the agents", loc="left", fontweight="bold", color=INK)
    for axes in (accuracy, agreement):
        axes.set_ylim(-0.02, 1.03)
        axes.set_xlabel("training step", color=GREY)
        axes.tick_params(colors=GREY, length=0)
        axes.grid(axis="y", color="#e4e6ea", linewidth=0.8)
        axes.set_axisbelow(True)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color("#c9ccd2")
    entries = [
        (Line2D([], [], color=PALETTE[index % len(PALETTE)], linewidth=5, solid_capstyle="butt"), name)
        for name, index in colours.items()
    ]
    for index, (run, label) in enumerate(zip(runs, labels, strict=True)):
        said = SUPERVISION_LABELS.get(run.supervision, f"{label}: {run.supervision}")
        kinds = [other.supervision for other in runs]
        said = said if kinds.count(run.supervision) == 1 else f"{label} ({said})"
        entries.append((Line2D([], [], color=INK, linestyle=dashes[index % len(dashes)], linewidth=1.9), said))
    legend = figure.legend(
        [line for line, _ in entries],
        [""] * len(entries),
        loc="outside lower center",
        ncols=min(len(entries), 5),
        frameon=False,
        labelcolor=INK,
    )
    for text, (_, name) in zip(legend.get_texts(), entries, strict=True):
        text.set_parse_math(False)
        text.set_text(name)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [value for _, value in points]
