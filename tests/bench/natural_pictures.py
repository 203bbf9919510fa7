"""Pictures of the runs of `tests.bench.natural`, from the frames of runs.csv and curves.csv."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from mmcorl.apps.analysis.statistics import SEEDS, student
from mmcorl.apps.report.overview import GREY, INK, PALETTE
from tests.bench.factors import complete, gains
from tests.bench.natural import CELLS
from tests.bench.plots import blank, label, style

BLUE, RED, GREEN, PINK = PALETTE[:4]
SOURCES = {"gold": INK, "ring": BLUE, "frozen": GREEN, "self": RED}
PARTNERS = dict(zip(CELLS, (GREY, GREEN, RED, BLUE), strict=True))
NAMES = {
    "ring": "a peer's votes (Co-RL)",
    "frozen": "a frozen peer's votes",
    "self": "own votes (TTRL)",
    "gold": "known answers",
    "last_frozen": "a frozen peer's votes",
    "pooled": "all votes together",
    "adaptive": "the likeliest peer's votes",
    "share": "share of a peer's votes",
    "rent": "own entropy (RENT)",
    "intuitor": "self-certainty (Intuitor)",
    "same_same": "same family, same examples",
    "same_other": "same family, other examples",
    "other_same": "other family, same examples",
    "other_other": "other family, other examples",
}
"""Of arms and cells, for people."""
COLUMNS = 4
"""Panels in a row of the long runs."""


def pictures(runs: pd.DataFrame, curves: pd.DataFrame) -> dict[str, Callable[[], Figure]]:
    """What can be drawn, by file name."""
    own = {name: (runs[runs["experiment"] == name], curves[curves["experiment"] == name]) for name in NAMED}
    return {
        f"{name}.svg": lambda make=NAMED[name], frames=own[name]: make(*frames) for name in own if len(own[name][0])
    }


def sources(runs: pd.DataFrame, curves: pd.DataFrame) -> Figure:
    """Change of held-out accuracy by source of rewards: mean over starts in a band from the lowest to the highest.

    Starts differ by more than what they gain, hence the change.
    """
    figure, (axes,) = blank("Change of held-out accuracy, in percentage points", height=4.2)
    ends = {}
    for arm, own in source_curves(whole(curves)).items():
        change = own.unstack("seed")
        change = 100 * (change - change.loc[0])
        middle, colour = change.mean(axis=1), SOURCES[arm]
        axes.fill_between(change.index, change.min(axis=1), change.max(axis=1), color=colour, alpha=0.13, linewidth=0)
        axes.plot(change.index, middle, color=colour, linewidth=2.2)
        ends[arm] = float(middle.iloc[-1])
    last = int(curves["step"].max())
    for arm, place in spread_out(ends, 0.05 * np.ptp(axes.get_ylim())).items():
        label(axes, f"{NAMES[arm]}, {ends[arm]:+.1f}", last, place, SOURCES[arm])
    axes.axhline(0, color=GREY, linewidth=0.9)
    axes.set_xlim(0, last * 1.5)
    axes.set_xticks([step for step in axes.get_xticks() if step <= last])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+.0f}" if value else "0")
    axes.set_xlabel(f"step; bands from the lowest to the highest of {change.shape[1]} starts", color=GREY)
    return figure


def whole(frame: pd.DataFrame) -> pd.DataFrame:
    """Leave out starts of which an arm has no run yet."""
    return frame[frame.groupby("seed")["arm"].transform("nunique") == frame["arm"].nunique()]


def source_curves(curves: pd.DataFrame) -> dict[str, pd.Series]:
    """Accuracy by (seed, step), mean of both agents; where a peer is frozen, each of the run in which it learns."""
    arms = {arm: own.set_index(["seed", "step"])[["accuracy_1", "accuracy_2"]] for arm, own in curves.groupby("arm")}
    found = {arm: arms[arm].mean(axis=1) for arm in ("gold", "ring", "self") if arm in arms}
    if {"first_frozen", "last_frozen"} <= arms.keys():
        learners = [arms["last_frozen"]["accuracy_1"], arms["first_frozen"]["accuracy_2"]]
        found["frozen"] = pd.concat(learners, axis=1).dropna().mean(axis=1)
    return found


def spread_out(places: Mapping[str, float], least: float) -> dict[str, float]:
    """Move labels apart that would touch, keeping their order and their middle."""
    names = sorted(places, key=places.__getitem__)
    moved = [places[name] for name in names]
    for _ in range(100):
        for i in range(len(moved) - 1):
            lack = least - (moved[i + 1] - moved[i])
            if lack > 0:
                moved[i], moved[i + 1] = moved[i] - lack / 2, moved[i + 1] + lack / 2
    return dict(zip(names, moved, strict=True))


def factors(runs: pd.DataFrame, curves: pd.DataFrame) -> Figure:
    """The first agent's gain by kind of partner, and over the overlap of errors before training."""
    figure, (kinds, overlap) = blank("Gain of the first agent", "The same, over κ before training", height=4.2)
    frame = complete(gains(runs))
    pairs = frame.groupby(["block", "cell"], sort=False).mean(numeric_only=True).reset_index()
    for _, own in pairs.groupby("block"):
        ordered = own.set_index("cell")["gain_1"].reindex(list(CELLS))
        kinds.plot(range(len(CELLS)), ordered, color="#d5d8dd", linewidth=1.2, zorder=1)
    for place, (cell, colour) in enumerate(PARTNERS.items()):
        own = pairs[pairs["cell"] == cell]
        kinds.plot([place] * len(own), own["gain_1"], "o", color=colour, alpha=0.45, markersize=5)
        if len(own) >= SEEDS:
            bounds = student(list(own["gain_1"]))
            kinds.plot([place + 0.14] * 2, bounds[:2], color=colour, linewidth=2.2, solid_capstyle="round")
        kinds.plot(place + 0.14, own["gain_1"].mean(), "o", color=colour, markersize=9)
        overlap.plot(own["kappa"], own["gain_1"], "o", color=colour, alpha=0.8, markersize=6)
    kinds.set_xticks(range(len(CELLS)), [NAMES[cell].replace(", ", "\n") for cell in CELLS], color=INK)
    for text, colour in zip(kinds.get_xticklabels(), PARTNERS.values(), strict=True):
        text.set_color(INK if colour == GREY else colour)
    kinds.set_xlim(-0.4, len(CELLS) - 0.4)
    for axes in (kinds, overlap):
        axes.axhline(0, color=GREY, linewidth=0.9)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:+.0f}" if value else "0")
    kinds.set_ylabel("percentage points", color=GREY)
    kinds.set_xlabel("grey lines: the same first agent; bars: 95 % over blocks", color=GREY)
    overlap.set_xlabel("Cohen’s κ of greedy answers, one dot per pair", color=GREY)
    return figure


def long(runs: pd.DataFrame, curves: pd.DataFrame) -> Figure:
    """Accuracy over steps, a panel for each rule and a line for each run."""
    arms = list(dict.fromkeys(runs["arm"]))
    rows = -(-len(arms) // COLUMNS)
    figure = Figure(figsize=(10, 0.5 + 2.1 * rows), facecolor="white", layout="constrained")
    FigureCanvasSVG(figure)
    panels = figure.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, arm in zip(panels, arms, strict=False):
        style(axes, NAMES.get(arm, arm), 10)
        for seed, own in curves[curves["arm"] == arm].groupby("seed"):
            axes.plot(own["step"], own["accuracy"], color=PALETTE[int(seed) % len(PALETTE)], linewidth=1.6)
            alarm = runs[(runs["arm"] == arm) & (runs["seed"] == seed)]["first_alarm"].iloc[0]
            if not np.isnan(alarm):
                height = np.interp(alarm, own["step"], own["accuracy"])
                axes.plot(alarm, height, "x", color=INK, markersize=7, markeredgewidth=1.8, zorder=3)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    for axes in panels[len(arms) :]:
        axes.set_visible(False)
    figure.supxlabel("step; a colour is a start, × its first alarm", color=GREY, fontsize=10)
    return figure


SAME_ARMS = ("headline", "faster", "unsure", "typefaces", "numbers")
NAMED = dict.fromkeys(SAME_ARMS, sources) | {"factors": factors, "long": long}
