"""Tables of pass@k, avg@k and Cover@tau: of evaluations with several samples per problem, and of two compared."""

from __future__ import annotations

from collections.abc import Sequence

from eval_suite.metrics.paired import Paired
from eval_suite.results.tables import DASH, Summaries, bounds, p_text, signed, title
from mmcorl.run.table import Align, Cell, Table, cells

MEASURES = (
    "avg@n: the mean over n samples, which is pass@1. pass@k: one of k samples is right, without bias from the n that "
    "there are. cover@t: at least a share t of the samples is right."
)
_ORDER = ("avg", "pass", "cover")


def sampled_tables(summaries: Summaries) -> list[Table]:
    """Return what several samples say, a column per benchmark and evaluation; no table where there is one sample."""
    columns = {
        (title(name), label): scores["sampled"]
        for label, summary in summaries
        for name, scores in summary["benchmarks"].items()
        if scores.get("sampled")
    }
    if not columns:
        return []
    heads = [name if len(summaries) == 1 else f"{name} {label}" for name, label in columns]
    rows = []
    for measure in sorted({name for values in columns.values() for name in values}, key=_rank):
        known = [values.get(measure) for values in columns.values()]
        rows.append(
            [
                Cell(measure),
                *(Cell(f"{100 * k['value']:.2f}", bounds(k["interval"])) if k else Cell(DASH) for k in known),
            ]
        )
    note = f"{MEASURES} In brackets: 95% interval; problems, or groups of them, are independent, their samples are not."
    return [Table("Several samples per problem, %", [("", "left"), *((head, "right") for head in heads)], rows, [note])]


def sampled_comparison(compared: Sequence[Paired]) -> list[Table]:
    """Return the same of two evaluations that were compared, problem by problem; no table where there is nothing."""
    rows: list[list[Cell]] = []
    groups = {}
    for paired in compared:
        if paired.sampled:
            groups[len(rows)] = f"{title(paired.benchmark)}, {paired.n:,} problems"
        for change in paired.sampled:
            low, high = change.interval
            numbers = (f"{100 * value:.2f}" for value in (change.before, change.after))
            difference = Cell(signed(change.difference, 2), f"[{signed(low, 1)}, {signed(high, 1)}]")
            rows.append([*cells(change.name, *numbers), difference, Cell("" if change.p is None else p_text(change.p))])
    if not rows:
        return []
    first = compared[0]
    columns: list[tuple[str, Align]] = [("", "left"), (f"A: {first.a} %", "right"), (f"B: {first.b} %", "right")]
    note = (
        f"{MEASURES} B \N{MINUS SIGN} A with its 95% interval: {first.resamples:,} resamples of whole problems, or of "
        "groups of them. p: exact, by flips of signs."
    )
    columns += [("B \N{MINUS SIGN} A", "right"), ("p", "right")]
    return [Table("Several samples per problem", columns, rows, [note], groups=groups)]


def _rank(measure: str) -> tuple[int, float]:
    kind, _, at = measure.partition("@")
    return _ORDER.index(kind), float(at)
