"""Pictures of what agents reach before and after training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmcorl.apps.report.overview import DASHES, GREY, INK, PALETTE, finish_axes, save_figure

if TYPE_CHECKING:
    from eval_suite.comparisons.boundary import Reach
    from eval_suite.metrics.sampled import Change


def draw(reaches: Sequence[Reach], path: Path) -> Path:
    """Draw a row per benchmark: pass@k and Cover@tau before (dashed) and after, and the change of pass@k.

    Shares of problems, from 0 to 1; the band of a change is its 95 % interval. One colour per agent.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(reach.benchmark for reach in reaches))
    colours = {who: PALETTE[n % len(PALETTE)] for n, who in enumerate(dict.fromkeys(reach.who for reach in reaches))}
    figure = Figure(figsize=(13.5, 4.1 * len(names)), dpi=140, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(names), 3, squeeze=False)
    for name, (passes, covers, changes) in zip(names, grid, strict=True):
        for reach in (reach for reach in reaches if reach.benchmark == name):
            colour = colours[reach.who]
            _both(passes, reach.passes, colour)
            _both(covers, reach.covers, colour)
            ks = [change.at for change in reach.passes]
            changes.plot(ks, [change.difference for change in reach.passes], color=colour, marker="o", markersize=4)
            lows, highs = zip(*(change.interval for change in reach.passes), strict=True)
            changes.fill_between(ks, lows, highs, color=colour, alpha=0.15, linewidth=0)
        changes.axhline(0, color=GREY, linewidth=1)
        for axes in (passes, changes):
            ticks = sorted({int(change.at) for reach in reaches if reach.benchmark == name for change in reach.passes})
            axes.set_xscale("log", base=2)
            axes.set_xticks(ticks, map(str, ticks))
        for axes in (passes, covers):
            axes.set_ylim(-0.02, 1.03)
        covers.set_xticks([change.at for change in reaches[0].covers])
        finish_axes(passes, f"pass@k on {name}", "k")
        finish_axes(covers, "Cover@tau", "tau, share of samples that are right")
        finish_axes(changes, "Change of pass@k", "k")
    keys = [(who, colour, DASHES[0]) for who, colour in colours.items()]
    return save_figure(figure, [*keys, ("before", INK, DASHES[1]), ("after", INK, DASHES[0])], path)


def _both(axes: Any, changes: Sequence[Change], colour: str) -> None:
    """Draw a curve before and after."""
    at = [change.at for change in changes]
    axes.plot(at, [change.before for change in changes], color=colour, linestyle=DASHES[1], linewidth=1.7)
    axes.plot(at, [change.after for change in changes], color=colour, linewidth=2.4, marker="o", markersize=4)
