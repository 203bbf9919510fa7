"""What two runs differ by: their settings, and the accuracy of each agent with its interval and test."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Literal

from mmcorl import config as settings
from mmcorl.analysis.intervals import wilson
from mmcorl.analysis.paired import RESAMPLES, percentile_interval, resampled_ratios, sign_flip_p
from mmcorl.errors import UserError
from mmcorl.report.gallery import same_answers
from mmcorl.report.table import Align, Cell, Table, cells
from mmcorl.run.folder import stream_jsonl
from mmcorl.run.reader import Points, RunFiles, dig

UNSAID = ("name", "notes")
"""Settings that say nothing of what a run does."""
NUMBERS = ("difference", "95 % interval", "p", "prompts")
"""Headings of the numbers of a difference."""
Answers = dict[tuple[str, str], bool]
"""Whether each prompt of an evaluation was answered right, or alike by two agents, by id and content."""
Measure = Literal["accuracy", "agreement"]
Measured = tuple[float, float, float, float | None, int, bool]
"""Value, bounds of the interval, p, prompts and whether paired, as `Difference` has them."""


@dataclass(frozen=True)
class Difference:
    """The last accuracy of an agent, or agreement of two, minus the same of the run that others are compared with."""

    run: str
    against: str
    set: str
    agent: str
    """Or a pair of them, such as `qwen|intern`."""
    value: float
    low: float
    high: float
    p: float | None
    """Of the exact test; None where the runs are not paired."""
    prompts: int
    paired: bool
    """Whether both answered the same prompts, each of which is on record."""
    measure: Measure = "accuracy"
    at: tuple[int, int] | None = None
    """Steps of the evaluations of `against` and `run`."""

    @property
    def within_noise(self) -> bool:
        """Whether it may be chance: by the interval, or by the exact test, which holds for few prompts as well."""
        return self.low <= 0 <= self.high or (self.p is not None and self.p > 0.05)

    def record(self) -> dict[str, Any]:
        """Return it for JSON, without what its row says anyway."""
        return {key: value for key, value in asdict(self).items() if key not in ("run", "set", "agent", "measure")}


def differences(runs: Sequence[RunFiles], labels: Sequence[str]) -> list[Difference]:
    """Return how each further run differs from the first, by validation set and agent that both have."""
    found = []
    first = runs[0]
    answers = [last_answers(run) for run in runs] if len(runs) > 1 else []
    for place, (run, label) in enumerate(zip(runs[1:], labels[1:], strict=True), 1):
        for name in first.sets:
            for agent in first.agents:
                a, b = (one.accuracy(name, agent) for one in (first, run))
                # A single evaluation is that before training, which says nothing of the run.
                if a.end is None or b.end is None or not a.items or not b.items:
                    continue
                mine, other = (known.get((name, agent), {}) for known in (answers[0], answers[place]))
                whole = len(mine) == a.items and mine.keys() == other.keys()
                measured = paired([(mine, other)]) if whole else unpaired(a.end, a.items, b.end, b.items)
                found.append(Difference(label, labels[0], name, agent, *measured, at=_last_steps(first, run, name)))
    return found


def agreement_differences(runs: Sequence[RunFiles], labels: Sequence[str]) -> list[Difference]:
    """Return how the agreement of each pair of agents differs from the first run, on sets without accuracies of both.

    Two agents answer a prompt alike or not, so this is paired by prompt as accuracies are.
    """
    found = []
    first = runs[0]
    known: dict[int, dict[tuple[str, str], Answers]] = {}
    for place, (run, label) in enumerate(zip(runs[1:], labels[1:], strict=True), 1):
        for name in first.sets:
            graded = any(
                None not in [one.accuracy(name, agent).start for one in (first, run)] for agent in first.agents
            )
            for pair in () if graded else first.pairs(name):
                a, b = (_pair_series(one, name, pair) for one in (first, run))
                of_a, of_b = (one.accuracy(name, pair.split("|")[0]).items for one in (first, run))
                if min(len(a), len(b)) < 2 or not of_a or not of_b:
                    continue
                for number in (0, place):
                    known[number] = known[number] if number in known else last_agreements(runs[number])
                mine, other = (known[number].get((name, unordered(pair)), {}) for number in (0, place))
                whole = len(mine) == of_a and mine.keys() == other.keys()
                measured = paired([(mine, other)]) if whole else unpaired(a[-1][1], of_a, b[-1][1], of_b)
                found.append(
                    Difference(label, labels[0], name, pair, *measured, "agreement", _last_steps(first, run, name))
                )
    return found


def _last_steps(first: RunFiles, run: RunFiles, name: str) -> tuple[int, int]:
    first_step, step = (int(one.validation_records(name)[-1]["step"]) for one in (first, run))
    return first_step, step


def unordered(pair: str) -> str:
    return "|".join(sorted(pair.split("|")))


def _pair_series(run: RunFiles, name: str, pair: str) -> Points:
    """Return the agreement of a pair, which the run may name in the other order."""
    own = next((one for one in run.pairs(name) if unordered(one) == unordered(pair)), None)
    return [] if own is None else run.agreement_series(name, own)


def last_agreements(run: RunFiles) -> dict[tuple[str, str], Answers]:
    """Return which prompts of the last evaluation each pair answered alike, by set and pair.

    A pair is left out whose share is not the one on record: a relation may have known more than the answers say.
    """
    last = {name: run.validation_records(name)[-1]["step"] for name in run.sets}
    given: dict[str, dict[str, dict[tuple[str, str], str | None]]] = {}
    for line in stream_jsonl(run.path / "responses.jsonl"):
        if "answer" in line and line.get("step") == last.get(str(line.get("set"))):
            answers = given.setdefault(str(line["set"]), {}).setdefault(str(line.get("agent")), {})
            answers[str(line.get("id")), str(line.get("uid"))] = line["answer"]
    found: dict[tuple[str, str], Answers] = {}
    with same_answers(run) as (same, _):
        for name, by_agent in given.items():
            for a, b in combinations(by_agent, 2):
                if by_agent[a].keys() != by_agent[b].keys():
                    continue
                agreed = {
                    prompt: x is not None and (y := by_agent[b][prompt]) is not None and same(str(x), str(y), None)
                    for prompt, x in by_agent[a].items()
                }
                pair = unordered(f"{a}|{b}")
                recorded = _pair_series(run, name, pair)
                if recorded and math.isclose(sum(agreed.values()) / len(agreed), recorded[-1][1], abs_tol=1e-9):
                    found[name, pair] = agreed
    return found


def paired(pairs: Sequence[tuple[Answers, Answers]]) -> Measured:
    """Compare B with A, each (A, B) of which answered the same prompts.

    Of several pairs, such as one per seed, the value is the mean over all answers, and what the pairs say of one prompt
    stays together in the bootstrap and in the exact test: McNemar's for one pair, else its sign-flip form.
    """
    changes: dict[tuple[str, str], tuple[int, int]] = {}
    for a, b in pairs:
        for prompt in a:
            change, count = changes.get(prompt, (0, 0))
            changes[prompt] = change + int(b[prompt]) - int(a[prompt]), count + 1
    low, high = percentile_interval(resampled_ratios([*changes.values()], seed=0, resamples=RESAMPLES))
    p = sign_flip_p(change for change, _ in changes.values())
    value = sum(change for change, _ in changes.values()) / sum(count for _, count in changes.values())
    return value, low, high, p, len(changes), True


def unpaired(a: float, of_a: int, b: float, of_b: int) -> Measured:
    """Newcombe's interval of a difference of two independent shares (his method 10), from Wilson's of each."""
    one, other = wilson(a * of_a, of_a), wilson(b * of_b, of_b)
    low = b - a - math.hypot(b - other.low, one.high - a)
    high = b - a + math.hypot(other.high - b, a - one.low)
    return b - a, low, high, None, min(of_a, of_b), False


def last_answers(run: RunFiles) -> dict[tuple[str, str], Answers]:
    """Return the last evaluation's answers by set and agent."""
    last = {name: run.validation_records(name)[-1]["step"] for name in run.sets}
    found: dict[tuple[str, str], Answers] = {}
    for line in stream_jsonl(run.path / "responses.jsonl"):
        if isinstance(line.get("right"), bool) and line.get("step") == last.get(str(line.get("set"))):
            answers = found.setdefault((str(line["set"]), str(line.get("agent"))), {})
            answers[str(line.get("id")), str(line.get("uid"))] = line["right"]
    return found


def difference_tables(runs: Sequence[RunFiles], labels: Sequence[str]) -> list[Table]:
    """Return how runs differ from the first in accuracy, and in agreement where no accuracies are known."""
    measured = differences(runs, labels), agreement_differences(runs, labels)
    return [difference_table(found) for found in measured if found]


def numbers(one: Difference) -> list[Cell]:
    """Return the cells of a difference below `NUMBERS`."""
    style = "dim" if one.within_noise else "green" if one.value > 0 else "red"
    mark = "~ " if one.within_noise else ""
    p = "–" if one.p is None else f"{one.p:.3f}" if one.p >= 0.001 else "< 0.001"
    interval = f"{one.low:+.3f} to {one.high:+.3f}"
    return [Cell(f"{mark}{one.value:+.3f}", style=style), *cells(interval, p, one.prompts)]


def difference_table(found: Sequence[Difference]) -> Table:
    """Return the differences of one measure as a table, a row per run, set and agent or pair."""
    several = len({one.run for one in found}) > 1
    sets = len({one.set for one in found}) > 1
    against, measure = found[0].against, found[0].measure
    names = ["run"] * several + ["set"] * sets + ["agents" if measure == "agreement" else "agent"]
    columns: list[tuple[str, Align]] = [(name, "left") for name in names]
    columns += [(name, "right") for name in NUMBERS]
    rows = []
    for one in found:
        named = [one.run] * several + [one.set] * sets + [one.agent.replace("|", " & ")]
        rows.append([*cells(*named), *numbers(one)])
    who = "Each run" if several else found[0].run
    what = {
        "accuracy": "Last accuracies.",
        "agreement": "Agreement of the last greedy answers, which does not say that they are right.",
    }
    notes = [
        f"{what[measure]} ~ marks what may be chance over the prompts: p above 0.05, or an interval that holds 0. "
        "Where nothing differs, one comparison in 20 lacks the mark all the same; other seeds may differ by more."
    ]
    steps = {
        f"{one.against} at step {one.at[0]}, {one.run} at {one.at[1]}" for one in found if one.at and len({*one.at}) > 1
    }
    if steps:
        notes.append(f"Evaluated at different steps: {'; '.join(sorted(steps))}.")
    if any(one.paired for one in found):
        notes.append("Paired by prompt: bootstrap interval, p of McNemar's exact test.")
    if any(not one.paired for one in found):
        notes.append("Without p: other prompts, or runs that do not record each answer; Newcombe's interval.")
    of = ": agreement" if measure == "agreement" else ""
    return Table(f"{who} minus {against}{of}", columns, rows, [" ".join(notes)])


def settings_that_differ(runs: Sequence[RunFiles]) -> dict[str, list[Any]]:
    """Return the values of each setting that is not the same in all runs, by its name as one overrides it.

    Defaults are filled in, so that a setting added to the program since is no difference.
    """
    return dict(_differing([_resolved(run) for run in runs], ""))


def _resolved(run: RunFiles) -> Any:
    try:
        held: dict[str, Any] = settings.parse(dict(run.config), kept=True).model_dump(mode="json")
    except UserError:
        held = dict(run.config)
    return {key: value for key, value in held.items() if key not in UNSAID}


def _differing(values: Sequence[Any], place: str) -> Iterator[tuple[str, list[Any]]]:
    if all(isinstance(value, Mapping) for value in values):
        for key in dict.fromkeys(key for value in values for key in value):
            yield from _differing([value.get(key) for value in values], f"{place}.{key}" if place else str(key))
    elif all(isinstance(value, list) and len(value) == len(values[0]) for value in values) and values[0]:
        for number, items in enumerate(zip(*values, strict=True)):
            names = {item.get("name") if isinstance(item, Mapping) else None for item in items}
            yield from _differing(items, f"{place}.{names.pop() if len(names) == 1 and None not in names else number}")
    elif any(value != values[0] for value in values):
        yield place, list(values)


def settings_table(runs: Sequence[RunFiles], labels: Sequence[str]) -> Table:
    """Return the settings that differ, a column per run."""
    columns: list[tuple[str, Align]] = [("setting", "left"), *((label, "left") for label in labels)]
    rows = []
    for key, values in settings_that_differ(runs).items():
        shown = ["none" if value is None else str(value) for value in values]
        if re.fullmatch(r"agents\.[^.]+\.lr", key):
            # Without a rate of its own an agent learns with that of all.
            shown = [
                f"{dig(_resolved(run), 'optimizer', 'lr')} (optimizer.lr)" if value is None else text
                for run, value, text in zip(runs, values, shown, strict=True)
            ]
        rows.append(cells(key, *shown))
    notes = [] if rows else ["All settings but the name are the same."]
    return Table("Settings that differ", columns, rows, notes)
