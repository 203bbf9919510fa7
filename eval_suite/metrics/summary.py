"""The summary of an evaluation: integers first, every rate beside its counts, nothing rounded.

A pure function of the rows, so it can be made again from the files at any time and comes out byte-identical.

Per benchmark: `n` items, `samples` per item, `aggregation`, `correct`, `total`, `accuracy`; `wilson` (bounds from
`correct` and `total` as if all answers were independent; pass@k takes n items as its total); `clustered` (by group, or
by item when an item has several samples; null when all answers are independent); `rule_correct`, `rule_accuracy` under
the same aggregation; per response `responses`, `missing`, `committed`, `format_rate`, `cut_off`, `cut_off_rate`,
`judge_recovered`, `judge_refused`, `judge_failed`, `judge_unclear`, `judge_pending` (could be judged, were not);
`unasked` (items that could not be put to the model), `sub_scores`, `caveats` (why official ones are left out),
`grader`, `judge`, `full_n`, `items` (hash of ids and fingerprints), for votes `tie_rule`, `ties`, for code `sandbox`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from eval_suite.items import Item, Response
from eval_suite.metrics.aggregate import Score, aggregate, default_aggregation
from eval_suite.metrics.intervals import Cluster, clustered_interval, wilson
from eval_suite.metrics.outcomes import Outcome, outcomes_of
from mmcorl.answers import Equivalence
from mmcorl.errors import UserError
from mmcorl.labels.voting import Relation, TieRule

SubScores = Callable[[Iterable[Item], Mapping[str, float]], Mapping[str, Any]]
"""A benchmark's official breakdown, `{field: {value: {n, correct, accuracy}}}`, from the share of correct
responses per item id."""
Caveats = Callable[[Iterable[Item], Mapping[str, float]], Sequence[str]]
"""Why a benchmark's official scores are left out; arguments as for `SubScores`."""
JUDGE_FACTS = ("model", "prompt_version")


def summarise(
    items: Iterable[Item],
    responses: Iterable[Response],
    rule_rows: Iterable[Mapping[str, Any]],
    judge_rows: Iterable[Mapping[str, Any]],
    sub_scores: Mapping[str, SubScores],
    grader: Mapping[str, Any],
    *,
    judge: Mapping[str, Any] | None = None,
    behaviour_rows: Iterable[Mapping[str, Any]] = (),
    samples: Mapping[str, int] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The content of summary.json: `{"benchmarks": {name: scores}}`, from the lines of an eval folder.

    Args:
        items: all items of the evaluation, in any order; images are not needed.
        responses: lines of responses.jsonl.
        rule_rows: lines of rule.jsonl.
        judge_rows: lines of judge.jsonl; the last line of a key holds.
        sub_scores: official breakdown by benchmark; a benchmark without one has none.
        grader: `name`, `version`, `mcq_policy`; or such facts by benchmark, for all benchmarks.
        judge: `model` and `prompt_version` of the judge that was asked; by default what the lines say. A judge
            that had nothing to do leaves no line, so name it where it is known.
        behaviour_rows: lines of behaviour.jsonl, without which programs cannot vote.
        samples: responses due per item, by benchmark; by default as many as the item with the most has.
        more: further arguments of `summarise_outcomes`.

    Raises:
        UserError: responses that do not fit the items, are not graded, or are too few for the aggregation;
            verdicts of several judges.
    """
    items, judge_rows = list(items), list(judge_rows)
    outcomes = outcomes_of(items, responses, rule_rows, judge_rows, behaviour_rows, samples=samples)
    judge = _one_judge(judge_rows, judge)
    return summarise_outcomes(items, outcomes, sub_scores, grader, judge=judge, **more)


def summarise_outcomes(
    items: Iterable[Item],
    outcomes: Iterable[Outcome],
    sub_scores: Mapping[str, SubScores],
    grader: Mapping[str, Any],
    *,
    judge: Mapping[str, Any] | None = None,
    fingerprints: Mapping[tuple[str, str], str] | None = None,
    full_sizes: Mapping[str, int] | None = None,
    aggregations: Mapping[str, str] | None = None,
    tie: TieRule = "lexicographic",
    relation: Relation | None = None,
    sandbox: Sequence[Mapping[str, Any]] = (),
    unasked: Iterable[Mapping[str, Any]] = (),
    caveats: Mapping[str, Caveats] | None = None,
) -> dict[str, Any]:
    """Summarise outcomes, of one checkpoint or pooled from several (`outcomes.pool`).

    Args:
        items, sub_scores, grader, judge: see `summarise`. Code is never judged.
        outcomes: the same number for every item of a benchmark.
        fingerprints: `Item.fingerprint` by (benchmark, id); computed by default, which needs the images.
        full_sizes: items of the whole benchmark; tables mark a score on fewer.
        aggregations: by benchmark; by default pass@1 for one response per item, avg@k for k.
        relation: when two answers are one vote in maj@k; by default the project's own.
        sandbox: what confined the programs that were run (`Sandbox.record`).
        unasked: lines of unasked.jsonl.
        caveats: by benchmark, as `sub_scores`.
    """
    unasked_items = Counter(row["benchmark"] for row in unasked)
    by_benchmark: dict[str, tuple[list[Item], list[Outcome]]] = {}
    for item in items:
        by_benchmark.setdefault(item.benchmark, ([], []))[0].append(item)
    for outcome in outcomes:
        by_benchmark[outcome.benchmark][1].append(outcome)
    summary = {}
    with Equivalence() as default:
        for name, (members, graded) in by_benchmark.items():
            _require_unique(members)
            aggregation = (aggregations or {}).get(name) or default_aggregation(len(graded) // len(members))
            score, by_rule = (
                aggregate(members, graded, aggregation, relation=relation or default, tie=tie, by_rule=rules_alone)
                for rules_alone in (False, True)
            )
            shares = {id: share.correct / share.total for id, share in score.by_item.items()}
            summary[name] = {
                "n": len(members),
                "samples": len(graded) // len(members),
                "aggregation": aggregation,
                "correct": score.correct,
                "total": score.total,
                "accuracy": score.accuracy,
                **_intervals(members, score),
                "rule_correct": by_rule.correct,
                "rule_accuracy": by_rule.accuracy,
                "tie_rule": score.tie_rule,
                "ties": score.ties,
                "sub_scores": dict(sub_scores[name](members, shares)) if name in sub_scores else {},
                "caveats": list(caveats[name](members, shares)) if caveats and name in caveats else [],
                **_counts(members, graded, judge),
                "grader": dict(grader.get(name, grader)),
                "sandbox": list(sandbox) if members[0].kind == "code" else None,
                "unasked": unasked_items[name],
                "full_n": (full_sizes or {}).get(name),
                "items": items_hash({item.id: _fingerprint(item, fingerprints) for item in members}),
            }
    return {"benchmarks": summary}


def clusters_of(items: Iterable[Item], score: Score) -> dict[str, Cluster]:
    """Correct and total per independent unit: the group of an item, or the item itself."""
    units: dict[str, Cluster] = {}
    for item in items:
        # The prefix keeps a group apart from an item that has no group but the same name.
        unit = f"item {item.id}" if item.group is None else f"group {item.group}"
        correct, total = units.get(unit, Cluster(0, 0))
        share = score.by_item[item.id]
        units[unit] = Cluster(correct + share.correct, total + share.total)
    return units


def items_hash(fingerprints: Mapping[str, str]) -> str:
    """One hash of all items of a benchmark, whatever their order."""
    lines = "\n".join(f"{id}\t{mark}" for id, mark in sorted(fingerprints.items()))
    return hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _fingerprint(item: Item, stored: Mapping[tuple[str, str], str] | None) -> str:
    return item.fingerprint if stored is None else stored[item.benchmark, item.id]


def _require_unique(items: Sequence[Item]) -> None:
    repeated = [id for id, count in Counter(item.id for item in items).items() if count > 1]
    if repeated:
        raise UserError(f"item {repeated[0]!r} of {items[0].benchmark} appears twice: give every item its own id")


def _one_judge(rows: Iterable[Mapping[str, Any]], named: Mapping[str, Any] | None) -> dict[str, Any] | None:
    seen = dict.fromkeys(tuple(row.get(fact) for fact in JUDGE_FACTS) for row in rows)
    if named is not None:
        seen = {tuple(named.get(fact) for fact in JUDGE_FACTS): None, **seen}
    if len(seen) > 1:
        names = ", ".join(" ".join(map(str, facts)) for facts in seen)
        raise UserError(f"verdicts of {len(seen)} judges are mixed ({names}): judge again with one of them")
    return dict(zip(JUDGE_FACTS, next(iter(seen)), strict=True)) if seen else None


def _intervals(items: Sequence[Item], score: Score) -> dict[str, Any]:
    sets = score.aggregation.startswith("pass@") and score.total != len(items)
    total = len(items) if sets else score.total
    units = clusters_of(items, score)
    clustered = None
    if len(units) < score.total:
        result = clustered_interval(list(units.values()))
        clustered = {
            "by": "group" if len(units) < len(items) else "item",
            "clusters": result.clusters,
            "standard_error": result.standard_error,
            "effective_n": result.effective,
            "interval": list(result.interval),
        }
    return {"wilson": list(wilson(score.correct / score.total * total, total)), "clustered": clustered}


def _counts(items: Sequence[Item], outcomes: Sequence[Outcome], judge: Mapping[str, Any] | None) -> dict[str, Any]:
    given = [outcome for outcome in outcomes if not outcome.missing]
    code = {item.id for item in items if item.kind == "code"}  # Tests decide what code is worth, no judge.
    words = Counter(o.judge for o in given if o.committed and not o.cut_off and not o.rule and o.id not in code)
    committed, cut_off = sum(o.committed for o in given), sum(o.cut_off for o in given)
    judge = None if len(code) == len(items) else judge
    return {
        "responses": len(given),
        "missing": len(outcomes) - len(given),
        "committed": committed,
        "format_rate": committed / len(given) if given else None,
        "cut_off": cut_off,
        "cut_off_rate": cut_off / len(given) if given else None,
        "judge_recovered": words["yes"],
        "judge_refused": words["no"],
        "judge_failed": words["failed"],
        "judge_unclear": words["unclear"],
        "judge_pending": words[None] if judge is not None else 0,
        "judge": None if judge is None else dict(judge),
    }
