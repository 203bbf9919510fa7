"""Tables and pictures of the runs of `tests.bench.natural`: `python -m tests.bench.natural_page docs/natural`.

The numbers of each run go to runs.csv, accuracy over steps to curves.csv. All else is made from these two, so that the
command above needs no runs. Where a page of the folder's name lies beside it, its tables are replaced as well.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd

from mmcorl.apps.analysis.statistics import SEEDS, holm, student
from mmcorl.apps.sweep.sweep import Planned
from mmcorl.run.table import Align, Cell, Table, cells, markdown
from tests.bench import factors, natural_pictures
from tests.bench.alarms import GAIN
from tests.bench.natural import CELLS, EXPERIMENTS
from tests.bench.natural_pictures import NAMES
from tests.bench.natural_runs import COLLAPSE_STEPS, COLLAPSED, FALL, curves, numbers
from tests.bench.results import say
from tests.bench.tables import compared, draw, p_text

SINGLE = 5
"""Runs up to which steps are listed run by run."""
OUTCOMES = {"gain_1": "gain of the first agent", "gain": "mean gain of the pair"}
PREDICTORS = {
    "kappa": "κ, greedy",
    "kappa_sampled": "κ, single samples",
    "start_2": "partner's accuracy at the start",
}


def by_start(runs: pd.DataFrame, column: str) -> dict[int, float]:
    return dict(zip(runs["seed"], runs[column], strict=True))


def differences(own: Mapping[int, float], base: Mapping[int, float]) -> list[float]:
    """Start by start."""
    return [value - base[seed] for seed, value in own.items() if seed in base]


def arms(runs: pd.DataFrame) -> list[Table]:
    """Both agents by source of rewards. An agent whose peer is frozen is compared with itself where both learn."""
    ends_of, title = ends_by_arm(runs), str(runs["experiment"].iloc[0]).capitalize()
    both = {arm: {seed: fmean(pair) for seed, pair in own.items()} for arm, own in ends_of.items()}
    starts = {seed: (row.start_1, row.start_2) for seed, row in runs.set_index("seed").iterrows()}
    base = both.get("ring", {})
    tested = list(compared([differences(own, base) if arm != "ring" else [] for arm, own in both.items()]))
    columns: list[tuple[str, Align]] = [("rewards", "left"), ("starts", "right")]
    columns += [(name, "right") for name in ("first agent", "second agent", "mean", "− Co-RL, 95 %", "p (Holm)")]
    before = np.mean(list(starts.values()), axis=0)
    rows = [[*cells("before training", len(starts), *(f"{value:.3f}" for value in (*before, before.mean())), "", "")]]
    for (arm, own), test in zip(ends_of.items(), tested, strict=True):
        first, second = np.mean(list(own.values()), axis=0)
        ends = [f"{value:.3f}" for value in (first, second, (first + second) / 2)]
        rows.append([*cells(NAMES.get(arm, arm), len(own), *ends), *(test if arm != "ring" else cells("", ""))])
    seeds = sorted(starts)
    by_seed = [
        cells(
            NAMES.get(arm, arm),
            *(f"{own[seed][0]:.3f}, {own[seed][1]:.3f}" if seed in own else "–" for seed in seeds),
        )
        for arm, own in ends_of.items()
    ]
    heads: list[tuple[str, Align]] = [("rewards", "left"), *((f"start {seed}", "right") for seed in seeds)]
    return [
        Table(
            f"{title}: held-out accuracy after training",
            columns,
            rows,
            list(frozen_share(both, {seed: fmean(pair) for seed, pair in starts.items()})),
        ),
        Table(f"{title}, start by start: first agent, second agent", heads, by_seed),
    ]


def ends_by_arm(runs: pd.DataFrame) -> dict[str, dict[int, tuple[float, float]]]:
    """Ends of both agents by start; an agent's end with a frozen peer is of the run in which its peer is frozen."""
    ends = {arm: own.set_index("seed") for arm, own in runs.groupby("arm", sort=False)}
    arms = {
        arm: {int(seed): (row.end_1, row.end_2) for seed, row in ends[arm].iterrows()}
        for arm in ("ring", "self", "gold")
        if arm in ends
    }
    if {"first_frozen", "last_frozen"} <= ends.keys():
        first, second = ends["last_frozen"]["end_1"], ends["first_frozen"]["end_2"]
        arms["frozen"] = {int(seed): (first[seed], second[seed]) for seed in first.index if seed in second.index}
    return {arm: arms[arm] for arm in ("ring", "frozen", "self", "gold") if arms.get(arm)}


def frozen_share(both: Mapping[str, Mapping[int, float]], starts: Mapping[int, float]) -> Iterator[str]:
    """How much of what a peer's votes gain a frozen peer's gain, too: over the start, and over own votes."""
    for name, base in (("the start", starts), ("own votes", both.get("self", {}))):
        seeds = [seed for seed in both.get("ring", {}) if seed in both.get("frozen", {}) and seed in base]
        if len(seeds) < SEEDS:
            continue
        part, whole = ([both[arm][seed] - base[seed] for seed in seeds] for arm in ("frozen", "ring"))
        bounds = factors.share(part, whole)
        told = f"95 % {bounds.low:.0%} to {bounds.high:.0%}" if bounds else "its 95 % interval is unbounded"
        gains = [(fmean(values), *student(values)[:2]) for values in (part, whole)]
        frozen, ring = (f"{middle:+.3f} [{low:+.3f}, {high:+.3f}]" for middle, low, high in gains)
        yield (
            f"Over {name}, a frozen peer gains {frozen} and Co-RL {ring}: {fmean(part) / fmean(whole):.0%} of it "
            f"(ratio of means over {len(seeds)} starts, {told} by Fieller's method)."
        )


def factor_tables(runs: pd.DataFrame) -> list[Table]:
    """The four kinds of partners, what family and examples do, and whether κ predicts it."""
    frame = factors.complete(factors.gains(runs))
    if not frame["block"].nunique():
        return []
    pairs = frame.groupby(["block", "cell"], sort=False).mean(numeric_only=True).reset_index()
    columns: list[tuple[str, Align]] = [("partner", "left"), ("pairs", "right"), ("runs", "right")]
    columns += [(name, "right") for name in (*PREDICTORS.values(), *OUTCOMES.values())]
    rows = []
    for cell in CELLS:
        own = pairs[pairs["cell"] == cell]
        values = [Cell(f"{own[key].mean():.3f}") for key in PREDICTORS]
        values += [with_interval(list(own[key])) for key in OUTCOMES]
        rows.append([*cells(NAMES[cell], len(own), int((frame["cell"] == cell).sum())), *values])
    notes = [f"Means over {pairs['block'].nunique()} blocks, seeds of a pair averaged first; Student's 95 % intervals."]
    found = [Table("Factors: gain by kind of partner", columns, rows, notes)]
    return [*found, *effects(frame), *associations(pairs)] if pairs["block"].nunique() >= SEEDS else found


def with_interval(values: Sequence[float]) -> Cell:
    """A mean with Student's interval, where there are enough values."""
    if len(values) < SEEDS:
        return Cell(f"{fmean(values):+.3f}")
    bounds = student(values)
    return Cell(f"{fmean(values):+.3f}", f"[{bounds.low:+.3f}, {bounds.high:+.3f}]")


def effects(frame: pd.DataFrame) -> Iterator[Table]:
    """The effects of both factors on both outcomes; p by the blocks, the most careful of the three."""
    fits = {outcome: factors.fit(frame, outcome) for outcome in OUTCOMES}
    adjusted = iter(holm([one.blocks.p for own in fits.values() for one in own.effects.values()]))
    columns: list[tuple[str, Align]] = [("outcome", "left"), ("effect", "left")]
    heads = ("estimate", "by blocks (Student)", "p (Holm)", "mixed model", "p of the model", "blocks resampled")
    columns += [(name, "right") for name in heads]
    named = {
        "family": "other family",
        "examples": "other examples",
        "family:examples": "both beyond their sum",
    }
    rows = [
        cells(
            OUTCOMES[outcome],
            named[name],
            f"{one.mean:+.3f}",
            f"[{one.blocks.low:+.3f}, {one.blocks.high:+.3f}]",
            p_text(next(adjusted)),
            f"[{one.model.low:+.3f}, {one.model.high:+.3f}]",
            p_text(one.model.p),
            f"[{one.resampled.low:+.3f}, {one.resampled.high:+.3f}]",
        )
        for outcome, own in fits.items()
        for name, one in own.effects.items()
    ]
    notes = [
        f"Of the {OUTCOMES[outcome]}, standard deviations of the mixed model: "
        + ", ".join(f"{name} {value:.3f}" for name, value in own.deviations.items())
        + ("" if own.converged else " (the optimizer did not converge)")
        + "."
        for outcome, own in fits.items()
    ]
    yield Table("Factors: what another family and other examples change, 95 % intervals", columns, rows, notes)


def associations(pairs: pd.DataFrame) -> Iterator[Table]:
    """How the gains of pairs go with what is known before training."""
    found = {
        (outcome, key): factors.association(pairs, key, outcome, "kappa" if key == "start_2" else "start_2")
        for outcome in OUTCOMES
        for key in PREDICTORS
    }
    adjusted = iter(holm([one.p_within for one in found.values()]))
    columns: list[tuple[str, Align]] = [("outcome", "left"), ("known before", "left")]
    heads = ("r within blocks", "p (Holm)", "r given the rival", "p", "r, all pairs", "p", "Spearman, all pairs", "p")
    columns += [(name, "right") for name in heads]
    rows = [
        cells(
            OUTCOMES[outcome],
            PREDICTORS[key],
            f"{one.within:+.2f}",
            p_text(next(adjusted)),
            f"{one.beside:+.2f}",
            p_text(one.p_beside),
            f"{one.pearson:+.2f}",
            p_text(one.p),
            f"{one.spearman:+.2f}",
            p_text(one.p_spearman),
        )
        for (outcome, key), one in found.items()
    ]
    notes = [
        f"n = {len(pairs)} pairs, seeds averaged first.",
        "Within blocks: of the deviations from the means of a block, whose first agent is the same; p by permuting "
        "partners within blocks. All pairs: p by permuting all, so first agents differ too; 10,000 permutations.",
        "Given the rival: partial r within blocks, of κ given the partner's accuracy and of that given greedy κ; p by "
        "the regression's t-test. Only the first p is adjusted.",
    ]
    yield Table("Factors: what predicts the gain", columns, rows, notes)


def cohort(runs: pd.DataFrame) -> list[Table]:
    """The first agent in rings of two, three and four."""
    arms = {str(arm): own.assign(gain_1=own["end_1"] - own["start_1"]) for arm, own in runs.groupby("arm", sort=False)}
    gains = {arm: by_start(own, "gain_1") for arm, own in arms.items()}
    base = gains.get("ring_of_2", {})
    tested = compared([differences(own, base) if arm != "ring_of_2" else [] for arm, own in gains.items()])
    columns: list[tuple[str, Align]] = [("cohort", "left"), ("starts", "right")]
    heads = ("first agent, start", "end", "gain, 95 %", "− ring of 2, 95 %", "p (Holm)", "mean of all, start", "end")
    columns += [(name, "right") for name in (*heads, "κ", "oracle")]
    rows = [
        [
            *cells(arm.replace("_", " "), len(own), f"{own['start_1'].mean():.3f}", f"{own['end_1'].mean():.3f}"),
            with_interval(list(gains[arm].values())),
            *(test if arm != "ring_of_2" else cells("", "")),
            *cells(*(f"{own[key].mean():.3f}" for key in ("start", "end", "kappa", "oracle"))),
        ]
        for (arm, own), test in zip(arms.items(), tested, strict=True)
    ]
    return [Table("Cohorts: the first agent with one, two and three peers", columns, rows)]


def long(runs: pd.DataFrame) -> list[Table]:
    """What rises and falls by rule, and whether an alarm comes before."""
    arms = {str(arm): own for arm, own in runs.groupby("arm", sort=False)}
    base = by_start(arms["ring"], "end") if "ring" in arms else {}
    tested = compared([differences(by_start(own, "end"), base) if arm != "ring" else [] for arm, own in arms.items()])
    columns: list[tuple[str, Align]] = [("rewards", "left"), ("starts", "right")]
    heads = (
        "start",
        "peak",
        "at step",
        "end",
        "end − peak, 95 %",
        "end − Co-RL, 95 %",
        "p (Holm)",
        "fell",
        "collapsed",
    )
    columns += [(name, "right") for name in heads]
    rows = [
        [
            *cells(NAMES.get(arm, arm), len(own), f"{own['start'].mean():.3f}", f"{own['peak'].mean():.3f}"),
            *cells(steps(own["peak_step"]), f"{own['end'].mean():.3f}"),
            with_interval(list(own["end"] - own["peak"])),
            *(test if arm != "ring" else cells("", "")),
            *cells(steps(own["fall_step"]), steps(own["collapse_step"])),
        ]
        for (arm, own), test in zip(arms.items(), tested, strict=True)
    ]
    notes = [
        f"Fell: the first evaluation that is {FALL} below the peak, as are all after it; a dash: did not happen.",
        "Collapsed: Model Collapse Step, the first step at which reward accuracy (how often labels are right, or "
        f"samples where certainty is rewarded) is below {COLLAPSED:.0%}, as a mean over {COLLAPSE_STEPS} steps.",
        "The peak is the best of many evaluations, so end − peak is below 0 by chance alone.",
    ]
    by_name = {NAMES.get(arm, arm): own for arm, own in arms.items()}
    return [
        Table("Long runs: rise and fall by rule", columns, rows, notes),
        alarms("Long runs: alarms without known answers", by_name),
    ]


def steps(values: pd.Series) -> str:
    """Steps run by run, of many runs their median and range."""
    known = values.dropna()
    if len(values) > SINGLE:
        return f"{known.median():.0f} ({known.min():.0f} to {known.max():.0f})" if len(known) else "–"
    return ", ".join("–" if np.isnan(value) else f"{value:.0f}" for value in values)


def alarms(title: str, groups: Mapping[str, pd.DataFrame]) -> Table:
    """Alarms of runs that fell, and false ones of runs that rose."""
    columns: list[tuple[str, Align]] = [("rewards", "left")]
    heads = ("runs", "fell", "of which alarmed before", "steps ahead of the fall", "rose", "of which alarmed (false)")
    columns += [(name, "right") for name in (*heads, "neither", "of which alarmed", "first alarm", "kinds")]
    rows = []
    for name, own in groups.items():
        fell, alarmed = own["fall_step"].notna(), own["first_alarm"].notna()
        rose = ~fell & (own["end"] - own["start"] > GAIN)
        ahead = (own["fall_step"] - own["first_alarm"])[fell]
        counts = (fell.sum(), (ahead >= 0).sum(), steps(ahead), rose.sum(), (rose & alarmed).sum())
        others = ~fell & ~rose
        kinds = sorted({kind for text in own["alarms"].dropna() for kind in re.findall(r"(\w+)@", text)})
        last = (others.sum(), (others & alarmed).sum(), steps(own["first_alarm"]), " ".join(kinds))
        rows.append(cells(name, len(own), *counts, *last))
    notes = [
        f"Fell: as in the table of long runs. Rose: ended more than {GAIN} above the start and did not fall.",
        "Steps ahead: of runs that fell, negative where the alarm came after. Of many runs: median (range).",
    ]
    return Table(title, columns, rows, notes)


def all_alarms(runs: pd.DataFrame) -> list[Table]:
    """Alarms of all runs by source of rewards; a ring whose peer is frozen is a ring."""
    groups = {str(name): own for name, own in runs.groupby("rewards", sort=False)}
    return [alarms("Alarms without known answers, all runs", groups)]


def cost(runs: pd.DataFrame) -> list[Table]:
    """Runs and time by experiment."""
    own = [(str(name), group) for name, group in runs.groupby("experiment", sort=False)]
    heads: list[tuple[str, Align]] = [("experiment", "left")]
    heads += [(name, "right") for name in ("runs", "seeds", "steps", "core-minutes, the models' lessons included")]
    rows = [
        cells(name, len(of), of["seed"].nunique(), of["steps"].max(), f"{of['core_seconds'].sum() / 60:.0f}")
        for name, of in [*own, ("all", runs)]
    ]
    return [Table("Cost", heads, rows)]


TABLES: Mapping[str, Callable[[pd.DataFrame], list[Table]]] = {
    "headline": arms,
    "faster": arms,
    "unsure": arms,
    "imbalanced": arms,
    "typefaces": arms,
    "numbers": arms,
    "factors": factor_tables,
    "cohort": cohort,
    "long": long,
}


def of_experiment(runs: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return its runs; those of starts alone that have all arms, where arms are compared start by start."""
    own = runs[runs["experiment"] == name]
    return own if name == "factors" else natural_pictures.whole(own)


OF_ALL: Mapping[str, Callable[[pd.DataFrame], list[Table]]] = {"alarms": all_alarms, "cost": cost}


def page(folder: Path) -> None:
    """Write results.md and pictures of a folder's runs.csv and curves.csv, and the tables of the page beside it."""
    runs, by_step = pd.read_csv(folder / "runs.csv"), pd.read_csv(folder / "curves.csv")
    known = {name: make(own) for name, make in TABLES.items() if len(own := of_experiment(runs, name))}
    known |= {name: make(runs) for name, make in OF_ALL.items()}
    (folder / "results.md").write_text(markdown([table for own in known.values() for table in own]))
    beside = folder.with_suffix(".md")
    if beside.is_file():
        beside.write_text(filled(beside.read_text(), known))
    for name, make in natural_pictures.pictures(runs, by_step).items():
        draw(make, folder / name)


def filled(text: str, known: Mapping[str, Sequence[Table]]) -> str:
    """Put tables between `<!-- tables: NAME -->` and `<!-- end -->`."""
    return re.sub(
        r"(<!-- tables: (\w+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}\n{markdown(known.get(found[2], []))}\n{found[3]}",
        text,
        flags=re.DOTALL,
    )


def write(planned: Sequence[Planned], costs: Mapping[str, float], out: Path) -> None:
    """Write runs.csv, curves.csv, results.md and pictures of what is finished; other runs in the files stay."""
    done = [one for one in planned if one.done]
    if not done:
        say("no run is finished")
        return
    out.mkdir(parents=True, exist_ok=True)
    runs = pd.DataFrame([numbers(one, costs) for one in done])
    by_step = pd.DataFrame([row for one in done for row in curves(one)])
    for name, rows in (("runs.csv", runs), ("curves.csv", by_step)):
        updated(out / name, rows).to_csv(out / name, index=False, float_format="%.6g")
    page(out)
    say(f"{len(done)} of {len(planned)} runs, {runs['core_seconds'].sum() / 60:.0f} core-minutes: {out}")


def updated(file: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """Replace or add the rows of some runs; those of arms that there are no more go."""
    if file.is_file():
        key, old = ["experiment", "arm", "seed"], pd.read_csv(file)
        again = pd.MultiIndex.from_frame(old[key]).isin(pd.MultiIndex.from_frame(rows[key]))
        rows = pd.concat([old[~again], rows])
    names = [f"{experiment}/{arm.name}" for experiment, arms_of in EXPERIMENTS.items() for arm in arms_of(0)]
    rank = (rows["experiment"] + "/" + rows["arm"]).map({name: rank for rank, name in enumerate(names)})
    ordered = rows.assign(rank=rank).dropna(subset="rank").sort_values(["rank", "seed"], kind="stable")
    return ordered.drop(columns="rank")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.natural_page", description="Tables of known runs.")
    parser.add_argument("folder", type=Path, help="with runs.csv and curves.csv")
    page(parser.parse_args().folder)
