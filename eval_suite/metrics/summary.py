"""The summary of an evaluation: integers first, every rate beside its counts, nothing rounded.

A pure function of the rows, so it can be made again from the files at any time and comes out byte-identical.

Per benchmark: `n` items, `samples` per item, `aggregation`, `correct`, `total`, `accuracy`; `wilson` (bounds from
`correct` and `total` as if all answers were independent; pass@k takes n items as its total); `clustered` (by group, or
by item when an item has several samples; null when all answers are independent); `rule_correct`, `rule_accuracy` under
the same aggregation; per response `responses`, `missing`, `committed`, `format_rate`, `cut_off`, `cut_off_rate` (the
token limit came before an answer), `unclosed`, `unclosed_rate` (ended by itself in a tag, box or think block that never
closes), `no_answer`, `no_answer_rate` (another response without an answer), `out_of_time` (not credited by rules
because the comparison took too long),
`judge_recovered`, `judge_refused`, `judge_failed`, `judge_unclear`, `judge_pending` (could be judged, were not);
`unasked` (items that could not be put to the model), `sub_scores`, `caveats` (why official ones are left out, known
answers that are no option), `asked`
(prompt and sampling; null for responses from elsewhere), `form_of` (the benchmark of which this is another form),
`grader`, `judge`, `full_n`, `items` (hash of ids and fingerprints), for votes `tie_rule`, `ties`, for code `sandbox`.
Where answers are scored and not only right or wrong: `score` (the mean), `score_name`, `score_interval`, and
`headline`, whether it is the score that the benchmark reports.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from eval_suite.benchmarks.base import RULES_ALONE, Benchmark, SubScores, by_field, cell
from eval_suite.metrics.aggregate import Score, aggregate, default_aggregation
from eval_suite.metrics.outcomes import Outcome
from eval_suite.metrics.prompt_protocol import Asked
from eval_suite.metrics.sampled import right_samples, summarised
from eval_suite.reporter import counted
from mmcorl.answers.relation_base import Relation
from mmcorl.answers.relation_table import RELATIONS
from mmcorl.apps.analysis.statistics import by_unit, clustered_interval, mean_interval, wilson
from mmcorl.errors import UserError
from mmcorl.grading.gold import clean_gold
from mmcorl.grading.grade_by_relation import Relations
from mmcorl.grading.items import Item, Key
from mmcorl.grading.rules import OUT_OF_TIME
from mmcorl.labels.voting import TieRule

_LETTER_OR_NUMBER = re.compile(r"[A-Z]|[+-]?\d+(?:\.\d+)?")
JUDGE_FACTS = ("model", "prompt_version")


def summarise(
    items: Iterable[Item],
    outcomes: Iterable[Outcome],
    grader: Mapping[str, Any],
    *,
    benchmarks: Mapping[str, Benchmark] | None = None,
    judge: Mapping[str, Any] | None = None,
    fingerprints: Mapping[tuple[str, str], str] | None = None,
    aggregations: Mapping[str, str] | None = None,
    tie: TieRule = "lexicographic",
    relation: Relation | None = None,
    sandbox: Sequence[Mapping[str, Any]] = (),
    unasked: Iterable[Mapping[str, Any]] = (),
    asked: Mapping[str, Asked | None] | None = None,
    vlmevalkit: Mapping[Key, bool] | None = None,
) -> dict[str, Any]:
    """Summarise one checkpoint or several (`outcomes.pool`) as {"benchmarks": {name: scores}}, for summary.json.

    Args:
        items: all items of the evaluation, in any order; images are not needed.
        outcomes: the same number for every item of a benchmark.
        grader: `name`, `version`, `mcq_policy`.
        benchmarks: where sub-scores, caveats and full sizes come from; items of others have none.
        judge: `model` and `prompt_version`; code is never judged.
        fingerprints: `Item.fingerprint` by (benchmark, id); computed by default, which needs the images.
        aggregations: by benchmark; by default pass@1 for one response per item, avg@k for k.
        relation: when two answers are one vote in maj@k, where items name none; by default the project's own.
        sandbox: what confined the programs that were run (`Sandbox.record`).
        unasked: lines of unasked.jsonl.
        asked: by benchmark, how its items were asked, as far as that is known.
        vlmevalkit: what VLMEvalKit's own rule credits, as far as it says anything.

    Raises:
        UserError: an item that appears twice, or responses too few for the aggregation.
    """
    unasked_items = Counter(row["benchmark"] for row in unasked)
    if fingerprints is not None:
        # Nobody reads the question of a file's own problem here, and there may be millions.
        known = benchmarks or {}
        items = (i if i.benchmark in known else replace(i, question="", question_for_eval=None) for i in items)
    summary = {}
    with Relations(relation) as relations:
        for name, (members, graded) in _by_benchmark(items, outcomes).items():
            _refuse_repeated(name, members)
            benchmark = (benchmarks or {}).get(name)
            aggregation = (aggregations or {}).get(name) or default_aggregation(len(graded) // len(members))
            score, by_rule = (
                aggregate(members, graded, aggregation, relation=relations.of(members[0]), tie=tie, by_rule=rules_alone)
                for rules_alone in (False, True)
            )
            mean = _mean_score(benchmark, members, score)
            shares = _shares(score, mean)
            summary[name] = {
                "n": len(members),
                "samples": len(graded) // len(members),
                "aggregation": aggregation,
                "correct": score.correct,
                "total": score.total,
                "accuracy": score.accuracy,
                **_intervals(members, score),
                "sampled": summarised(members, right_samples(members, graded), len(graded) // len(members)),
                "rule_correct": by_rule.correct,
                "rule_accuracy": by_rule.accuracy,
                "tie_rule": score.tie_rule,
                "ties": score.ties,
                "sub_scores": _sub_scores(benchmark, members, shares) | _official_mean(mean, len(members)),
                "caveats": _caveats(benchmark, members, shares, judge, relations),
                **_counts(members, graded, judge),
                "vlmevalkit": _as_vlmevalkit(graded, vlmevalkit or {}),
                "asked": (asked or {}).get(name),
                "form_of": benchmark.form_of if benchmark else None,
                "grader": dict(grader),
                "sandbox": list(sandbox) if members[0].kind == "code" else None,
                "unasked": unasked_items[name],
                "full_n": (benchmark.questions or benchmark.rows) if benchmark else None,
                "items": items_hash(
                    {item.id: fingerprints[name, item.id] if fingerprints else item.fingerprint for item in members}
                ),
            } | mean
    return {"benchmarks": summary}


def _by_benchmark(items: Iterable[Item], outcomes: Iterable[Outcome]) -> dict[str, tuple[list[Item], list[Outcome]]]:
    grouped: dict[str, tuple[list[Item], list[Outcome]]] = {}
    for item in items:
        grouped.setdefault(item.benchmark, ([], []))[0].append(item)
    for outcome in outcomes:
        grouped[outcome.benchmark][1].append(outcome)
    return grouped


def _refuse_repeated(name: str, items: Sequence[Item]) -> None:
    repeated = next((id for id, count in Counter(item.id for item in items).items() if count > 1), None)
    if repeated is not None:
        raise UserError(f"item {repeated!r} of {name} appears twice: give every item its own id")


def _sub_scores(benchmark: Benchmark | None, items: Sequence[Item], shares: Mapping[str, float]) -> SubScores:
    """Return the sub-scores of a benchmark; of rows of one's own, accuracy by their tag."""
    return by_field(items, shares, ("tag",)) if benchmark is None else benchmark.sub_scores(items, shares)


def _caveats(
    benchmark: Benchmark | None,
    items: Sequence[Item],
    shares: Mapping[str, float],
    judge: Mapping[str, Any] | None,
    relations: Relations,
) -> list[str]:
    if benchmark is None:
        return _without_option(items, relations)
    return [*benchmark.caveats(items, shares), *([RULES_ALONE] if benchmark.judged and judge is None else [])]


def _without_option(items: Iterable[Item], relations: Relations) -> list[str]:
    """Say of how many of one's own rows the known answer, a letter or a number, is none of the options."""
    none = []
    for item in items:
        gold, options = item.gold.strip(), item.choices
        if item.relation is not None or not options or not _LETTER_OR_NUMBER.fullmatch(gold) or gold in options:
            continue
        if not relations.of(item).options(gold, options).labels:
            none.append(f"id {item.id!r}, {gold!r} with {len(options)} options")
    if not none:
        return []
    count = counted(len(none), "known answer is", "known answers are")
    return [f"{count} none of the options, so that no option is right (first: {none[0]}): correct the file"]


def _as_vlmevalkit(outcomes: Iterable[Outcome], theirs: Mapping[Key, bool]) -> dict[str, int] | None:
    """Return what VLMEvalKit's own rule credits, and where the two differ; None where it says nothing."""
    pairs = Counter((outcome.correct, theirs[outcome.key]) for outcome in outcomes if outcome.key in theirs)
    if not pairs:
        return None
    both, here, there = pairs[True, True], pairs[True, False], pairs[False, True]
    return {"n": pairs.total(), "right": both + there, "both": both, "here_alone": here, "there_alone": there}


def _mean_score(benchmark: Benchmark | None, items: Sequence[Item], score: Score) -> dict[str, Any]:
    """Return the mean score under its name, where answers are scored and not only right or wrong."""
    if score.score is None or score.scores is None:
        return {}
    row = RELATIONS.find(items[0].relation) if items[0].relation is not None else None
    name = benchmark.score_name if benchmark is not None else row.measure if row is not None and row.graded else ""
    if not name:
        return {}
    scores = score.scores
    interval = mean_interval(by_unit((item.cluster, (scores[item.id], 1)) for item in items))
    return {
        "score": score.score,
        "score_name": name,
        "score_interval": None if interval is None else list(interval),
        "headline": benchmark is not None and benchmark.reports_score,
    }


def _shares(score: Score, mean: Mapping[str, Any]) -> dict[str, float]:
    """Return by item id what it adds to the score that the benchmark reports."""
    if mean.get("headline"):
        return dict(score.scores or {})
    return {id: share.correct / share.total for id, share in score.by_item.items()}


def _official_mean(mean: Mapping[str, Any], n: int) -> SubScores:
    return {"mean": {mean["score_name"]: cell(mean["score"] * n, n)}} if mean else {}


def items_hash(fingerprints: Mapping[str, str]) -> str:
    """Return one hash of all items of a benchmark, whatever their order."""
    lines = "\n".join(f"{id}\t{mark}" for id, mark in sorted(fingerprints.items()))
    return hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def one_judge(rows: Iterable[Mapping[str, Any]], named: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the judge of the lines of judge.jsonl, or the one `named`, which had nothing to do; UserError for two."""
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
    units = by_unit((item.cluster, score.by_item[item.id]) for item in items)
    clustered = None
    if len(units) < score.total:
        by = "group" if len(units) < len(items) else "item"
        facts = vars(clustered_interval(units))
        clustered = {"by": by, **facts, "interval": list(facts["interval"])}
    return {"wilson": list(wilson(score.correct / score.total * total, total)), "clustered": clustered}


def _counts(items: Sequence[Item], outcomes: Sequence[Outcome], judge: Mapping[str, Any] | None) -> dict[str, Any]:
    given = [outcome for outcome in outcomes if not outcome.missing]
    # Tests decide what code is worth, a relation what places are, and nothing agrees with a blank answer: no judge is
    # asked about these.
    unjudged = {item.id for item in items if not item.may_be_judged or not clean_gold(item.gold)}
    words = Counter(o.judge for o in given if o.committed and not o.cut_off and not o.rule and o.id not in unjudged)
    committed, cut_off, unclosed = (
        sum(getattr(o, name) for o in given) for name in ("committed", "cut_off", "unclosed")
    )
    without = len(given) - committed - cut_off - unclosed
    due = len(outcomes)
    judge = None if len(unjudged) == len(items) else judge
    return {
        "responses": len(given),
        "missing": len(outcomes) - len(given),
        "committed": committed,
        "format_rate": committed / due,
        "cut_off": cut_off,
        "cut_off_rate": cut_off / due,
        "unclosed": unclosed,
        "unclosed_rate": unclosed / due,
        "no_answer": without,
        "no_answer_rate": without / due,
        "out_of_time": sum(o.reason == OUT_OF_TIME for o in given),
        "judge_recovered": words["yes"],
        "judge_refused": words["no"],
        "judge_failed": words["failed"],
        "judge_unclear": words["unclear"],
        "judge_pending": words[None] if judge is not None else 0,
        "judge": None if judge is None else dict(judge),
    }
