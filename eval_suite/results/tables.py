"""Tables of one or several summaries and of a comparison.

A table that would mix graders, multiple-choice policies, judges or item sets is refused: its numbers would not be
comparable. Columns whose evaluations were asked differently are marked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import chain
from typing import Any

from eval_suite.benchmarks.tasks import BENCHMARKS, by_problems, suites
from eval_suite.metrics.paired import Paired, facts_difference
from eval_suite.metrics.prompt_protocol import ASKED, asked_differences, grouped, protocol_of, shown
from eval_suite.reporter import counted
from mmcorl.apps.analysis.statistics import wilson
from mmcorl.errors import UserError
from mmcorl.run.table import Align, Cell, Table, cells, csv

Summaries = Sequence[tuple[str, Mapping[str, Any]]]
"""(label, content of summary.json), in the order of the table."""

DASH = "–"
BREAKDOWN = (
    "format %: responses that commit to an answer in a form that is read, such as a box or answer tags; cut off, "
    "unclosed, no answer and missing are the others. All are shares of the responses that were due."
)
"""What the endings of the breakdown are."""


def score_tables(summaries: Summaries) -> list[Table]:
    """Return the scores of one or several evaluations, and a second table with the stages behind each score.

    One evaluation has its benchmarks as rows, several have them as columns, as in the paper's tables.

    Raises:
        UserError: the evaluations differ in grader, multiple-choice policy, judge or items.
    """
    check_one_table(summaries)
    columns = _columns(summaries)
    means = _means(columns)
    table = _one(*summaries[0], columns, means) if len(summaries) == 1 else _several(summaries, columns, means)
    return [table, _origins(summaries, columns)]


def sub_score_tables(label: str, benchmark: str, scores: Mapping[str, Any]) -> list[Table]:
    """Return one table per field of a benchmark's sub-scores: subject, level, version, ..."""
    columns: list[tuple[str, Align]] = [("", "left"), ("n", "right"), ("%", "right")]
    tables = []
    for field, values in scores["sub_scores"].items():
        rows = []
        for value, counts in values.items():
            correct, n = counts["correct"], counts["n"]
            small = "" if not n or counts.get("ratio") else bounds(wilson(correct, n))
            score = Cell(percent(Fraction(correct), n), small) if n else Cell(DASH)
            rows.append([Cell(_key(value) if field == "official" else value), Cell(f"{n:,}"), score])
        tables.append(Table(f"{title(benchmark)} by {field}: {label}", columns, rows))
    return tables


def _key(official: str) -> str:
    """Return MathVision's official keys readably: `-level1`: `level 1`, `algebra_level3`: `algebra, level 3`."""
    subject, level, number = official.partition("level")
    words = [subject.strip("-_").replace("_", " "), f"level {number}" if level else ""]
    return ", ".join(word for word in words if word)


def comparison_table(compared: Sequence[Paired], left_out: Sequence[str] = ()) -> Table:
    """Return the table of a paired comparison, one row per benchmark; `left_out` are further notes.

    Raises ValueError when there is nothing to compare, or when the rows are about different evaluations.
    """
    (a, b), *others = dict.fromkeys((paired.a, paired.b) for paired in compared)
    if others:
        raise ValueError(f"one table holds one comparison, not {[(a, b), *others]}")
    shares = any(paired.aggregation.startswith("avg") for paired in compared)
    alone = ("A ahead", "B ahead") if shares else ("only A right", "only B right")
    heads = ("n", f"A: {a} %", f"B: {b} %", "B − A", *alone, "p")
    columns: list[tuple[str, Align]] = [("", "left"), *((head, "right") for head in heads)]
    rows = []
    for paired in compared:
        low, high = paired.headline.interval
        row = [Cell(title(paired.benchmark), paired.aggregation), Cell(f"{paired.n:,}")]
        row += cells(f"{100 * paired.accuracy_a:.2f}", f"{100 * paired.accuracy_b:.2f}")
        row.append(Cell(signed(paired.difference, 2), f"[{signed(low, 1)}, {signed(high, 1)}]"))
        row += cells(f"{paired.only_a:,}", f"{paired.only_b:,}", p_text(paired.headline.p_value))
        rows.append(row)
    first = compared[0]
    test = "sign-flip" if shares else "McNemar"
    notes = [
        "B − A in percentage points with its 95% interval (paired bootstrap, "
        f"{first.resamples:,} resamples, seed {first.seed}). p: exact {test} test, two-sided."
    ]
    notes += [
        f"{title(paired.benchmark)}: interval and p over {paired.by_group.count:,} whole groups of dependent items "
        f"(items taken as independent: p {p_text(paired.by_item.p_value)})."
        for paired in compared
        if paired.by_group is not None
    ]
    notes += [
        f"{title(paired.benchmark)}: {counted(count, 'response', 'responses')} of {label} missing or unjudged, counted "
        "as wrong."
        for paired in compared
        for label, count in ((paired.a, paired.unsettled_a), (paired.b, paired.unsettled_b))
        if count
    ]
    notes += [
        f"{title(paired.benchmark)}: asked differently ({'; '.join(paired.asked_differently)}), so the difference is "
        "not the models' alone."
        for paired in compared
        if paired.asked_differently
    ]
    if len(compared) > 1:
        notes.append(f"{len(compared)} tests in one table: p is not corrected for their number.")
    return Table(f"{b} against {a}", columns, rows, [*notes, *left_out])


def csv_text(summaries: Summaries) -> str:
    """Return all evaluations as CSV, one row per evaluation and benchmark, unrounded.

    Raises:
        UserError: as for `score_tables`.
    """
    check_one_table(summaries)
    rows = [
        _csv_row(label, name, scores) for label, summary in summaries for name, scores in summary["benchmarks"].items()
    ]
    lines = [cells(*("" if value is None else value for value in row.values())) for row in rows]
    return csv(Table("", [(name, "left") for name in rows[0]], lines))


_CSV_COUNTS = ("samples", "aggregation", "tie_rule", "n", "full_n", "correct", "total", "accuracy")
_CSV_RATES = (
    *("rule_correct", "rule_accuracy", "responses", "missing", "unasked", "format_rate", "cut_off_rate"),
    *("unclosed_rate", "no_answer_rate", "judge_recovered", "judge_refused", "judge_failed", "judge_unclear"),
    "judge_pending",
)


def _csv_row(label: str, name: str, scores: Mapping[str, Any]) -> dict[str, Any]:
    wilson_low, wilson_high = scores["wilson"] or ("", "")
    clustered = scores["clustered"] or {"interval": ("", ""), "clusters": ""}
    grader, judge, how = scores["grader"], scores["judge"] or {}, scores.get("asked") or {}
    return {
        "run": label,
        "benchmark": name,
        **{key: scores[key] for key in _CSV_COUNTS},
        "wilson_low": wilson_low,
        "wilson_high": wilson_high,
        "clustered_low": clustered["interval"][0],
        "clustered_high": clustered["interval"][1],
        "clusters": clustered["clusters"],
        **{key: scores.get(key, "") for key in _CSV_RATES},
        "grader": grader.get("name"),
        "grader_version": grader.get("version"),
        "mcq_policy": grader.get("mcq_policy"),
        "reading": grader.get("reading"),
        "judge_model": judge.get("model"),
        "judge_prompt_version": judge.get("prompt_version"),
        "items": scores["items"],
        "protocol": protocol_of(how),
        **{key: shown(key, how[key]) if key in how else "" for key in ASKED},
    }


def check_one_table(summaries: Summaries) -> None:
    """Refuse evaluations in one table that were graded differently or on different items.

    Raises:
        UserError: naming the first difference and both evaluations.
    """
    if not any(summary["benchmarks"] for _, summary in summaries):
        raise UserError("no scores to show: grade some responses first")
    firsts: dict[str, tuple[str, Any]] = {}
    for label, summary in summaries:
        for name, scores in summary["benchmarks"].items():
            grader = scores["grader"]
            checks = [(f"grader {grader['name']}", "grader", grader, "grade the responses of both again")]
            if grader.get("mcq_policy") is not None:
                checks.append(
                    ("mcq_policy", "multiple-choice policy", {"mcq_policy": grader["mcq_policy"]}, "grade both again")
                )
            checks.append((f"grader of {name}", f"grader of {name}", grader, "grade both again"))
            checks.append((f"judge of {name}", f"judge of {name}", scores["judge"], "judge both or neither"))
            for key, what, facts, way_out in checks:
                other, known = firsts.setdefault(key, (label, facts))
                if (difference := facts_difference(known, facts)) is not None:
                    where = f"inside {label!r}" if other == label else f"between {other!r} and {label!r}"
                    raise UserError(f"{what} differs {where} ({difference}): {way_out}, or make two tables")
            other, known = firsts.setdefault(f"items of {name}", (label, scores))
            if known["items"] != scores["items"]:
                raise UserError(
                    f"{name} has other items in {other!r} ({known['n']}) than in {label!r} ({scores['n']}): "
                    "evaluate both on the same items, or make two tables"
                )


def percent(correct: int | Fraction, total: int = 1, digits: int = 2) -> str:
    """Return 100 * correct / total with `digits` decimals, rounded half up once, in exact arithmetic."""
    scaled = Fraction(correct) / total * 100 * 10**digits
    units = (2 * scaled.numerator + scaled.denominator) // (2 * scaled.denominator)
    whole, part = divmod(units, 10**digits)
    return f"{whole}.{part:0{digits}d}" if digits else str(whole)


def mean(scores: Sequence[Mapping[str, Any]]) -> Fraction:
    """Return the paper's average: the exact plain mean over benchmarks, regardless of their sizes."""
    return sum(map(_reported, scores), Fraction(0)) / len(scores)


def _reported(scores: Mapping[str, Any]) -> Fraction:
    """Return the score that the benchmark reports: the share of right answers, or the mean score."""
    return Fraction(scores["score"]) if scores.get("headline") else Fraction(scores["correct"], scores["total"])


def p_text(p: float) -> str:
    """Return a p-value with three decimals."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def title(benchmark: str) -> str:
    """Return a benchmark's name as the paper writes it."""
    return (BENCHMARKS[benchmark].title or benchmark) if benchmark in BENCHMARKS else benchmark


def shown_interval(scores: Mapping[str, Any]) -> Sequence[float] | None:
    """Return the interval to print: of the mean score where that is reported, clustered where answers are not
    independent, else Wilson's."""
    clustered = scores["clustered"]
    interval: Sequence[float] | None = clustered["interval"] if clustered else scores["wilson"]
    if scores.get("headline"):
        interval = scores["score_interval"]
    return interval


Column = tuple[str, str]
"""(benchmark, aggregation): one benchmark scored in two ways makes two columns."""


def _columns(summaries: Summaries) -> list[Column]:
    present = dict.fromkeys(
        (name, scores["aggregation"]) for _, summary in summaries for name, scores in summary["benchmarks"].items()
    )
    order = list(BENCHMARKS)
    return sorted(present, key=lambda column: order.index(column[0]) if column[0] in order else len(order))


Members = Sequence[Sequence[str]]
"""Per member of a suite, the benchmarks that are there for it: itself, other forms of it, or both."""


def _means(columns: Sequence[Column]) -> dict[str, Members]:
    """Return the suites whose members are all there, each form in one aggregation, less those within another."""
    names = [name for name, _ in columns]
    forms = by_problems(name for name in names if names.count(name) == 1)
    whole = {suite: members for suite, members in suites().items() if forms.keys() >= set(members)}
    return {
        suite: [forms[name] for name in members]
        for suite, members in whole.items()
        if not any(set(members) < set(others) for others in whole.values())
    }


def _of_members(summary: Mapping[str, Any], members: Members) -> list[Mapping[str, Any] | None]:
    """Return the score of each member in one evaluation; None where it has none, or two forms."""
    present = [[summary["benchmarks"][name] for name in names if name in summary["benchmarks"]] for names in members]
    return [scores[0] if len(scores) == 1 else None for scores in present]


def score_cell(scores: Mapping[str, Any] | None) -> Cell:
    """Return a score in percent with its interval; a dash where there is none."""
    if scores is None or not scores["total"]:
        return Cell(DASH)
    return Cell(percent(_reported(scores)), bounds(shown_interval(scores)))


def mean_cell(scores: Sequence[Mapping[str, Any] | None]) -> Cell:
    """Return the mean of several benchmarks; a dash where one of them has no score."""
    known = [row for row in scores if row is not None and row["total"]]
    return Cell(percent(mean(known)) if len(known) == len(scores) else DASH)


def _vlmevalkit_cell(scores: Mapping[str, Any] | None) -> Cell:
    """Return the share that VLMEvalKit's own rule credits, without a judge."""
    theirs = scores.get("vlmevalkit") if scores else None
    return Cell(percent(theirs["right"], theirs["n"]) if theirs else DASH)


def _scores_of(summary: Mapping[str, Any], column: Column) -> Mapping[str, Any] | None:
    scores: Mapping[str, Any] | None = summary["benchmarks"].get(column[0])
    return scores if scores is not None and scores["aggregation"] == column[1] else None


def _one(label: str, summary: Mapping[str, Any], columns: Sequence[Column], means: Mapping[str, Members]) -> Table:
    heads: list[tuple[str, Align]] = [("", "left"), ("aggregation", "left"), ("accuracy %", "right")]
    heads += [("correct", "right"), ("of", "right")]
    beside = any(scores.get("vlmevalkit") for scores in summary["benchmarks"].values())
    heads += [("as VLMEvalKit %", "right")] * beside
    rows = []
    for name, aggregation in columns:
        scores = summary["benchmarks"][name]
        # Sets of k responses, which pass@k counts, may be too many to read.
        counts = [f"{count:,}" if count < 10**9 else f"{count:.3g}" for count in (scores["correct"], scores["total"])]
        if scores.get("headline"):
            counts[0] = f"{scores['score'] * scores['total']:,.2f}"
        rows.append([Cell(title(name)), Cell(aggregation), score_cell(scores), *cells(*counts)])
        rows[-1] += [_vlmevalkit_cell(scores)] * beside
    for suite, members in means.items():
        rows.append([Cell(suite), Cell(""), mean_cell(_of_members(summary, members))])
        rows[-1] += cells("", "", *[""] * beside)
    return Table(label, heads, rows, _notes([(label, summary)]))


def _several(summaries: Summaries, columns: Sequence[Column], means: Mapping[str, Members]) -> Table:
    marks = _asked_differently(summaries)
    names = [f"{title(name)} {aggregation}{' *' if name in marks else ''}" for name, aggregation in columns]
    mixed = {suite: text for suite, members in means.items() if (text := _mixed_forms(summaries, members))}
    for suite, members in means.items():
        names.append(f"{suite}{' *' if suite in mixed or marks.keys() & set(chain(*members)) else ''}")
    rows = []
    for label, summary in summaries:
        scores = [score_cell(_scores_of(summary, column)) for column in columns]
        scores += [mean_cell(_of_members(summary, members)) for members in means.values()]
        rows.append([Cell(label), *scores])
    notes = [*_notes(summaries), *(f"* {title(name)}: asked differently, {text}." for name, text in marks.items())]
    notes += [f"* {suite}: not of the same problems in the same form, {text}." for suite, text in mixed.items()]
    return Table("Accuracy %", [("", "left"), *((name, "right") for name in names)], rows, notes)


def _mixed_forms(summaries: Summaries, members: Members) -> str:
    """Return whose mean takes which form of a member that is there in several: `GSM8K (a), GSM8K 5-shot (b)`."""
    names = [name for forms in members if len(forms) > 1 for name in forms]
    holders = {name: [label for label, summary in summaries if name in summary["benchmarks"]] for name in names}
    return ", ".join(f"{title(name)} ({', '.join(labels)})" for name, labels in holders.items())


def _asked_differently(summaries: Summaries) -> dict[str, str]:
    """Return, by benchmark, in what its evaluations were asked differently: `style boxed (a, b), plain (c)`."""
    marks = {}
    for name in dict.fromkeys(name for _, summary in summaries for name in summary["benchmarks"]):
        each = {label: summary["benchmarks"][name] for label, summary in summaries if name in summary["benchmarks"]}
        known = {label: scores["asked"] for label, scores in each.items() if scores.get("asked") is not None}
        first = next(iter(known.values()), None)
        differing = {line.partition(":")[0] for how in known.values() for line in asked_differences(first, how)}
        parts = []
        for key in (key for key in ASKED if key in differing):
            values = grouped([(label, shown(key, how.get(key))) for label, how in known.items()])
            parts.append(f"{key} " + ", ".join(f"{value} ({labels})" for labels, value in values))
        if parts:
            marks[name] = "; ".join(parts)
    for forms in by_problems(name for _, summary in summaries for name in summary["benchmarks"]).values():
        for name in forms if len(forms) > 1 else ():
            others = " and ".join(title(other) for other in forms if other != name)
            marks[name] = "; ".join([*([marks[name]] if name in marks else []), f"in another form than {others}"])
    return marks


def _origins(summaries: Summaries, columns: Sequence[Column]) -> Table:
    """Return per score what the rules credited, what the judge added, and what could not be scored."""
    several = len(summaries) > 1
    heads: list[tuple[str, Align]] = [("", "left"), ("run", "left")] if several else [("", "left")]
    endings = "format %", "cut off %", "unclosed %", "no answer %", "missing %"
    for head in ("n", "rules alone %", "judge recovered", *endings, "judge failed", "judge unclear"):
        heads.append((head, "right"))
    rows = []
    for column in columns:
        for label, summary in summaries:
            scores = _scores_of(summary, column)
            if scores is None:
                continue
            due, total = scores["responses"] + scores["missing"], scores["total"]
            rule = percent(scores["rule_correct"], total) if total else DASH
            shares = [
                percent(scores[key], due, 1) if due and key in scores else DASH
                for key in ("committed", "cut_off", "unclosed", "no_answer", "missing")
            ]
            recovered, *others = (
                DASH if scores["judge"] is None else f"{scores[key]:,}"
                for key in ("judge_recovered", "judge_failed", "judge_unclear")
            )
            names = [title(column[0]), label] if several else [title(column[0])]
            rows.append(cells(*names, f"{scores['n']:,}", rule, recovered, *shares, *others))
    return Table("Score breakdown", heads, rows, [BREAKDOWN])


def _notes(summaries: Summaries) -> list[str]:
    graders: list[tuple[str, str]] = []
    judges: list[tuple[str, str]] = []
    caveats: list[str] = []
    for label, summary in summaries:
        for name, scores in summary["benchmarks"].items():
            grader, judge = scores["grader"], scores["judge"]
            graders.append((title(name), grader_text(grader)))
            facts = "none" if judge is None else f"{judge['model']}, prompt {judge['prompt_version']}"
            judges.append((title(name), facts))
            caveats += _caveats(title(name), scores, f" in {label}" if len(summaries) > 1 else "")
    notes = []
    for word, users in (("Grader", grouped(graders)), ("Judge", grouped(judges))):
        notes += [f"{word}: {facts}{f' ({names})' if len(users) > 1 else ''}." for names, facts in users]
    return [*notes, *_protocols(summaries), "In brackets: 95% Wilson interval.", *dict.fromkeys(caveats)]


def grader_text(grader: Mapping[str, Any]) -> str:
    """Return name and version of a grader, and how it reads answers."""
    policy = "" if grader.get("mcq_policy") is None else f", multiple choice {grader['mcq_policy']}"
    reading = f", reading {grader['reading']}" if grader.get("reading") else ""
    return f"{grader.get('name')} {grader.get('version')}{policy}{reading}"


def _protocols(summaries: Summaries) -> list[str]:
    """Say under which protocol the evaluations were made, if any was under one."""
    users = grouped(
        [
            (label, protocol_of(row.get("asked")))
            for label, summary in summaries
            for row in summary["benchmarks"].values()
        ]
    )
    if not any(text for _, text in users):
        return []
    texts = [text if len(users) == 1 else f"{text or 'none'} ({names})" for names, text in users]
    return [f"Protocol: {'; '.join(texts)}."]


def _caveats(name: str, scores: Mapping[str, Any], of: str) -> Iterator[str]:
    """Yield what a reader of one score must know; `of` names the evaluation where there are several."""
    if clustered := scores["clustered"]:
        unit = "groups of dependent items" if clustered["by"] == "group" else "items sampled several times"
        yield f"{name}: interval clustered by {clustered['clusters']:,} {unit}."
    if scores["full_n"] and scores["n"] < scores["full_n"]:
        yield f"{name}: {scores['n']:,} of {scores['full_n']:,} items only."
    for caveat in scores.get("caveats", ()):
        yield f"{name}{of}: {caveat}."
    if scores.get("headline"):
        right = percent(scores["correct"], scores["total"]) if scores["total"] else DASH
        yield f"{name}{of}: mean {scores['score_name']}; {right}% of the answers count as right."
    elif "score" in scores:
        yield f"{name}{of}: mean {scores['score_name']} {scores['score']:.3f}."
    if theirs := scores.get("vlmevalkit"):
        yield (
            f"{name}{of}: VLMEvalKit's own rule (exact matching, no judge) would credit {theirs['right']:,} of "
            f"{theirs['n']:,} multiple-choice responses, {theirs['there_alone']:,} of them alone; "
            f"{theirs['here_alone']:,} are right here alone."
        )
    if scores["tie_rule"]:
        yield f"{name} {scores['aggregation']}: ties by {scores['tie_rule']} ({scores['ties']:,}{of})."
    for record in scores.get("sandbox") or ():
        yield f"{name}{of}: programs ran confined by {', '.join(record['layers']) or 'limits alone'}."
    missing = scores["missing"] - scores["unasked"] * scores["samples"]
    if scores["unasked"]:
        words = "item could not be put to the model and counts", "items could not be put to the model and count"
        yield f"{name}{of}: {counted(scores['unasked'], *words)} as wrong."
    if missing:
        words = "response is missing and counts", "responses are missing and count"
        yield f"{name}{of}: {counted(missing, *words)} as wrong."
    if late := scores["out_of_time"]:
        words = "comparison was not finished in time and counts", "comparisons were not finished in time and count"
        yield f"{name}{of}: {counted(late, *words)} as not equal."
    if waiting := scores["judge_failed"] + scores["judge_pending"]:
        words = "response waits", "responses wait"
        yield f"{name}{of}: {counted(waiting, *words)} for a judge; judge again for a final score."


def bounds(interval: Sequence[float] | None) -> str:
    """Return an interval in percent; empty for None."""
    return "" if interval is None else f"[{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"


def signed(share: float, digits: int) -> str:
    """Return a difference in points with its sign."""
    text = f"{100 * share:+.{digits}f}"
    return text.replace("-", "−") if float(text) else text[1:]
