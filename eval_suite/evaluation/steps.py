"""The steps of an evaluation, each from files to files: generate, grade, observe programs, judge, sum up.

Every step can be repeated, and one that was killed resumes. Only `generate` needs a model, only `judge` an endpoint or
a judge model; a folder of responses is graded on any machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from eval_suite.benchmarks.tasks import BENCHMARKS, Benchmark
from eval_suite.evaluation.generation import Generation
from eval_suite.metrics.outcomes import Outcome
from eval_suite.metrics.prompt_protocol import asked_of
from eval_suite.metrics.summary import one_judge, summarise
from eval_suite.reporter import SILENT, Reporter, counted
from eval_suite.results.finished import Evaluation, facts
from eval_suite.results.folder import VLMEVALKIT, EvalFolder, StoredItems, item_from_row, writing
from eval_suite.samples_page import write_view
from mmcorl.apps.report.links import of_evaluation, origin
from mmcorl.errors import RunError, UserError
from mmcorl.grading import Grader
from mmcorl.grading.gold import clean_gold
from mmcorl.grading.items import GradedReading, Item, Key, Keys, McqPolicy, Response, item_key, key_of
from mmcorl.grading.verdict import GRADER
from mmcorl.run import provenance

if TYPE_CHECKING:
    from mmcorl.grading.code_task import CodeTask
    from mmcorl.grading.judge import JudgeFormat, JudgeRequest, JudgeSettings, VllmJudge
    from mmcorl.sandbox.process import Sandbox

GRADED_AT_ONCE = 512
JUDGED_AT_ONCE = 1 << 14
GRADINGS = ("rule.jsonl", "behaviour.jsonl", "judge.jsonl")
"""Files of grades, stale once responses are generated again."""
UNCLEAR_SHARE = 0.2
"""Above this share of unclear replies the judge itself is at fault, not its questions."""
Again = Literal["unclear", "all"]
"""Which verdicts of the same judge are requested again, besides those that failed."""


def generate(
    folder: EvalFolder,
    items: Sequence[Item],
    settings: Generation,
    produce: Callable[[Generation, Sequence[Item], int], Iterable[Response]],
    *,
    doing: str = "answering",
    reporter: Reporter = SILENT,
) -> None:
    """Fill responses.jsonl for the `askable` items of one benchmark; `produce` answers one chunk of them.

    An incomplete chunk is generated again as a whole, so that a resumed run writes what an uninterrupted one would
    have written. Errors of `produce` propagate.
    """
    name, chunk, samples = items[0].benchmark, settings.chunk, settings.samples
    have = Keys(map(key_of, folder.stream("responses.jsonl")))
    chunks = [items[start : start + chunk] for start in range(0, len(items), chunk)]
    whole = [all((item.benchmark, item.id, k) in have for item in part for k in range(samples)) for part in chunks]
    kept = {item.key for part, done in zip(chunks, whole, strict=True) if done for item in part}
    again = {item.key for item in items} - kept
    for file in ("responses.jsonl", *GRADINGS):
        folder.replace_rows(file, (row for row in folder.stream(file) if item_key(row) not in again))
    with reporter.task(f"{name}: {doing}", len(items)) as bar:
        for number, (part, done) in enumerate(zip(chunks, whole, strict=True)):
            if not done:
                folder.append("responses.jsonl", [response.as_row() for response in produce(settings, part, number)])
            bar.advance(len(part))


def askable(
    folder: EvalFolder, items: Sequence[Item], check: Callable[[Item], str | None], *, reporter: Reporter = SILENT
) -> list[Item]:
    """Return the items of one benchmark that can be put to the model. Once any is answered, all have been checked.

    `check` returns why an item cannot be put to the model, or None. Such items go to unasked.jsonl, are reported, and
    count as wrong: a benchmark is scored over all its items. Errors of `check` propagate.

    Raises:
        UserError: no item fits the model.
    """
    name = items[0].benchmark
    answered = set(map(item_key, folder.stream("responses.jsonl")))
    unasked = set(map(item_key, folder.lines("unasked.jsonl")))
    if not any(item.key in answered or item.key in unasked for item in items):
        rejected = []
        with reporter.task(f"{name}: checking prompts", len(items)) as bar:
            for item in items:
                reason = check(item)
                if reason is not None:
                    rejected.append({"benchmark": item.benchmark, "id": item.id, "reason": reason})
                bar.advance()
        if rejected:
            first = f"the first is {rejected[0]['id']!r}: {rejected[0]['reason']}"
            if len(rejected) == len(items):
                raise UserError(f"no item of {name} can be put to this model; {first}")
            count = "counts" if len(rejected) == 1 else "count"
            reporter.warn(
                f"{name}: {len(rejected)} of {len(items)} items cannot be put to this model and {count} as wrong; "
                f"{first}"
            )
            folder.append("unasked.jsonl", rejected)
            unasked = set(map(item_key, rejected))
    return [item for item in items if item.key not in unasked]


def grade(
    folder: EvalFolder,
    policy: McqPolicy,
    sandbox: Sandbox | None = None,
    *,
    what: str = "",
    reporter: Reporter = SILENT,
) -> None:
    """Fill rule.jsonl: the rule stage over all responses; rows of another grader version, policy or reading are redone.

    Programs run in `sandbox` and are refused without one. `what` labels the progress bar.
    """
    facts = {"name": GRADER[0], "version": GRADER[1], "mcq_policy": policy}
    reading: GradedReading = folder.manifest.get("reading") or "commitment"
    if reading != "commitment":
        facts["reading"] = reading
    if folder.document("rule.json") != facts:
        # Verdicts are about the answers that the rules extracted; the judge's cache keeps its reply to each.
        for name in GRADINGS:
            folder.replace_rows(name, [])
        folder.write("rule.json", json.dumps(facts) + "\n")
    items = StoredItems(folder)
    done = Keys(map(key_of, folder.stream("rule.jsonl")))
    tasks = folder.benchmarks()
    not_run = 0
    # Responses are read one at a time, as there may be millions.
    waiting, code = 0, False
    for key in map(key_of, folder.stream("responses.jsonl")):
        if key not in done:
            waiting += 1
            code = code or (sandbox is not None and items[key[:2]].kind == "code")
    if sandbox is not None and code:
        _record_sandbox(folder, sandbox)
    rows: list[dict[str, Any]] = []
    with Grader(policy, reading=reading) as grader, reporter.task(f"grading {what}".strip(), waiting) as bar:
        try:
            for response in folder.responses():
                key = response.benchmark, response.id, response.sample
                if key in done:
                    continue
                item = items[key[:2]]
                row = _rule_row(item, response, grader, sandbox, tasks)
                if row is None:
                    not_run += 1
                else:
                    rows.append(row)
                if item.kind == "code" or len(rows) == GRADED_AT_ONCE:
                    graded, rows = rows, []
                    folder.append("rule.jsonl", graded)
                bar.advance()
        finally:
            if rows:  # whatever ends the loop, what is graded stays
                folder.append("rule.jsonl", rows)
    if not_run:
        raise RunError(
            f"the sandbox failed on {not_run} programs, which says nothing of them: the rest is graded, give the same "
            "command again for these"
        )


def _rule_row(
    item: Item, response: Response, grader: Grader, sandbox: Sandbox | None, tasks: Mapping[str, Benchmark]
) -> dict[str, Any] | None:
    """Grade one response; None when the sandbox, not its program, failed."""
    row: dict[str, Any] = {"benchmark": response.benchmark, "id": response.id, "sample": response.sample}
    tests: dict[str, Any] = {}
    if item.kind != "code":
        graded: Any = grader.rule(item, response)
    else:
        if sandbox is None:
            raise UserError(
                f"{item.benchmark} runs code that a model wrote, which is off: allow it with `run_code=True`"
            )
        from mmcorl.grading.code_task import grade_code

        code = grade_code(_code_task(item, tasks), item, response, sandbox)
        if code.result is not None and code.result.harness_error:
            return None
        graded, tests = code.verdict, {"tests": [vars(test) for test in code.result.tests] if code.result else []}
    if item.relation is not None:
        row["score"] = graded.score
    facts = ("answer", "committed", "cut_off", "unclosed", "rule", "reason")
    return row | {name: getattr(graded, name) for name in facts} | tests


def judge(
    folder: EvalFolder,
    judge: JudgeSettings | VllmJudge,
    *,
    again: Again | None = None,
    end: int = 0,
    what: str = "",
    reporter: Reporter = SILENT,
) -> str:
    """Fill judge.jsonl for the responses that commit to an answer which the rules did not credit.

    Verdicts that failed, and those of another judge or prompt version, are requested again; with `again`, also the
    unclear ones, or all. `end`: characters of a response's end that the judge reads, too. `what` labels the progress
    bar. Returns a sentence if the judge answered no request at all, else nothing.
    """
    from mmcorl.grading.judge import JudgeCounts, VerdictCache, due, judge_all

    form = judge.format
    name = {"model": judge.name, "prompt_version": form.recorded(end)}
    end = form.shows(end)
    items = StoredItems(folder)
    judged = Keys(
        key
        for row in folder.stream("rule.jsonl")
        if row["committed"] and not row["cut_off"] and not row["rule"]
        if (item := items[(key := key_of(row))[:2]]).may_be_judged and clean_gold(item.gold)
    )
    stale = {"failed", "unclear"} if again == "unclear" else {"failed"}
    kept = (
        row
        for row in folder.stream("judge.jsonl")
        if key_of(row) in judged and row.items() >= name.items() and row["verdict"] not in stale and again != "all"
    )
    failed, stopped, done_by = 0, "", JudgeCounts()
    sentences: dict[str | None, None] = {}
    with VerdictCache(folder.path / "verdicts.sqlite") as cache:
        folder.replace_rows("judge.jsonl", kept)
        folder.write("judge.json", json.dumps(name) + "\n")
        done = Keys(map(key_of, folder.stream("judge.jsonl")))
        waiting = Keys(key for key in judged if key not in done)
        with reporter.task(f"judging {what}".strip(), len(waiting)) as bar:

            def keep(keys: Iterable[Key], verdict: str, raw: str) -> None:
                rows = [dict(zip(("benchmark", "id", "sample"), key, strict=True)) for key in keys]
                folder.append("judge.jsonl", [row | {"verdict": verdict, "raw": raw} | name for row in rows])
                nonlocal failed
                if verdict == "failed":
                    failed += len(rows)
                    bar.update(f"{failed:,} without a reply")
                else:
                    bar.advance()

            for requests in _requests(folder, items, waiting if again == "all" else Keys(), end):
                cache.forget([form.key(request, judge.name) for request in requests.values()])
            for requests in _requests(folder, items, waiting, end):
                if stopped:
                    keep(requests, "failed", stopped)
                    continue
                keys = list(requests)
                if (coming := due(list(requests.values()), judge, cache)).requests:
                    reporter.note(f"judge: {coming}")
                counts = judge_all(
                    list(requests.values()), judge, lambda n, *report, keys=keys: keep([keys[n]], *report), cache=cache
                )
                stopped = counts.stopped or ""
                done_by.add(counts)
                sentences |= dict.fromkeys([stopped, *(failure.sentence for failure in counts.failures.values())])
    if done_by.asked:
        reporter.note(f"judge: {done_by.usage}")
    sentences[_mostly_unclear(folder, form)] = None
    for sentence in filter(None, sentences):
        reporter.warn(f"judge: {sentence}")
    _sort_verdicts(folder, name)
    if not waiting or failed < len(waiting):
        return ""
    return (
        f"the judge answered none of {counted(len(waiting), 'request', 'requests')}, so only what the rules credit "
        f"counts in {str(folder.path)!r}: correct what is said above, and give the same command again"
    )


def _sort_verdicts(folder: EvalFolder, name: Mapping[str, str]) -> None:
    """Put judge.jsonl into the order of the responses, whatever order the replies came in."""
    verdicts: dict[tuple[str, str], dict[int, tuple[str, str]]] = {}
    for row in folder.stream("judge.jsonl"):
        words = sys.intern(row["verdict"]), sys.intern(row["raw"])
        verdicts.setdefault(item_key(row), {})[row["sample"]] = words
    folder.replace_rows("judge.jsonl", (
        {"benchmark": key[0], "id": key[1], "sample": key[2], "verdict": given[0], "raw": given[1], **name}
        for key in map(key_of, folder.stream("rule.jsonl"))
        if (given := verdicts.get(key[:2], {}).get(key[2]))
    ))  # fmt: skip


def _requests(folder: EvalFolder, items: StoredItems, waiting: Keys, end: int) -> Iterator[dict[Key, JudgeRequest]]:
    """Yield what a judge is asked in parts that fit into memory."""
    from mmcorl.grading.judge import JudgeRequest

    rows = (row for row in folder.stream("rule.jsonl") if key_of(row) in waiting)
    while part := list(islice(rows, JUDGED_AT_ONCE)):
        requests = {}
        for row in part:
            item = items[row["benchmark"], row["id"]]
            requests[key_of(row)] = JudgeRequest(item.for_judge, item.choices, item.gold, row["answer"])
        if end:
            for response in folder.responses():
                if (key := (response.benchmark, response.id, response.sample)) in requests:
                    requests[key] = replace(requests[key], ending=response.text[-end:])
        yield requests


def _mostly_unclear(folder: EvalFolder, form: JudgeFormat) -> str:
    """Return a warning about a judge that ignores its menu of replies; empty for one that keeps to it."""
    replies, unclear, first = 0, 0, ""
    for row in folder.stream("judge.jsonl"):
        replies += row["verdict"] != "failed"
        unclear += row["verdict"] == "unclear"
        first = row["raw"] if row["verdict"] == "unclear" and unclear == 1 else first
    if unclear <= UNCLEAR_SHARE * replies:
        return ""
    return (
        f"{unclear:,} of {counted(replies, 'reply', 'replies')} unclear, the first {first[:80]!r}: none states one of "
        f"{', '.join(form.menu)}{f' behind `{form.label}:`' if form.label else ''}; take another judge, or the format "
        "that it was trained on (`judge_format`), and ask with judge_again=unclear"
    )


def mostly_without_answer(name: str, scores: Mapping[str, Any]) -> str | None:
    """Return what to say of a score where most responses ended by themselves without an answer that is read."""
    silent, given = scores["no_answer"], scores["responses"]
    if 2 * silent <= given or scores["sandbox"] is not None:
        return None
    none = f"{name}: {silent:,} of {counted(given, 'response', 'responses')} hold no answer in tags or a box"
    if scores["grader"].get("reading") == "prose":
        return f"{none}, nor state one in a sentence of the grammar (mmcorl/answers/prose.py), and count as wrong"
    return f"{none}, and count as wrong: reading=prose also reads answers in sentences, such as `Answer: B`"


def observe(
    folder: EvalFolder, sandbox: Sandbox, *, benchmarks: set[str] | None = None, reporter: Reporter = SILENT
) -> bool:
    """Fill behaviour.jsonl, by which programs vote: what each does on public examples of its problem.

    `benchmarks` limits it to some. Returns whether anything was added, which makes a summary stale.

    Raises:
        RunError: the sandbox itself failed on some problems; the rest is kept, and the same command resumes.
    """
    from mmcorl.grading.behaviour import program_votes
    from mmcorl.sandbox.process import HarnessError

    done = Keys(map(key_of, folder.stream("behaviour.jsonl")))
    waiting: dict[tuple[str, str], list[Response]] = {}
    code = {
        item.key
        for item in folder.items()
        if item.kind == "code" and (benchmarks is None or item.benchmark in benchmarks)
    }
    for response in folder.responses():
        key = response.benchmark, response.id
        if key in code and (*key, response.sample) not in done:
            waiting.setdefault((response.benchmark, response.id), []).append(response)
    items = [item for item in folder.items() if item.key in waiting]
    if not items:
        return False
    _record_sandbox(folder, sandbox)
    tasks = folder.benchmarks()
    failures: list[str] = []
    with reporter.task("running examples", len(items)) as bar:
        for item in items:
            responses = waiting[item.benchmark, item.id]
            try:
                acts_by_response = program_votes(_code_task(item, tasks), item, responses, sandbox)
            except HarnessError as error:
                failures.append(str(error))
            else:
                folder.append("behaviour.jsonl", [
                    {"benchmark": item.benchmark, "id": item.id, "sample": response.sample,
                     "outputs": acts.outputs, "tree": acts.tree}
                    for response, acts in zip(responses, acts_by_response, strict=True)
                ])  # fmt: skip
            bar.advance()
    if failures:
        raise RunError(
            f"the sandbox failed on the examples of {counted(len(failures), 'problem', 'problems')} ({failures[0]}), "
            "which says nothing of the programs: the rest is kept, give the same command again for these"
        )
    return True


def _code_task(item: Item, tasks: Mapping[str, Benchmark]) -> CodeTask:
    task = tasks[item.benchmark].code if item.benchmark in tasks else None
    if task is None:
        known = ", ".join(benchmark.name for benchmark in BENCHMARKS.values() if benchmark.code)
        raise UserError(f"{item.benchmark} does not say how its programs run; benchmarks that do are {known}")
    return task


def _record_sandbox(folder: EvalFolder, sandbox: Sandbox) -> None:
    """Record what confined the programs of a folder; one that is resumed on another machine names both."""
    records = folder.document("sandbox.json") or {"used": []}
    if sandbox.record not in records["used"]:
        records["used"].append(sandbox.record)
        folder.write("sandbox.json", json.dumps(records, indent=1) + "\n")


def sum_up(folder: EvalFolder, title: str | None = None) -> Evaluation:
    """Write summary.json, its tables and samples.html from the files."""
    unasked = folder.lines("unasked.jsonl")
    outcomes = folder.outcomes()
    theirs = {key_of(row): bool(row["right"]) for row in folder.stream(VLMEVALKIT)}
    aggregations = folder.manifest.get("aggregations")
    summary = summary_of(folder, outcomes, aggregations, unasked=unasked, vlmevalkit=theirs)
    folder.write("summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    evaluation = Evaluation(folder.title if title is None else title, folder, summary)
    evaluation.write()
    with writing(folder.path / "samples.html"):
        write_view(
            folder.path / "samples.html",
            title=evaluation.label,
            item_rows=folder.stream("items.jsonl"),
            outcomes=outcomes,
            responses=folder.responses,
            judge_rows=folder.stream("judge.jsonl"),
            facts=[*facts(folder), *origin(folder.path, provenance.read(folder.path))],
            links=of_evaluation(folder.manifest.get("model"), folder.path, folder.path / "samples.html"),
        )
    return evaluation


def summary_of(
    folder: EvalFolder, outcomes: Sequence[Outcome], aggregations: Mapping[str, str] | None, **more: Any
) -> dict[str, Any]:
    """Summarise outcomes, of one checkpoint or pooled, over the items of `folder`; `aggregations` by benchmark."""
    manifest = folder.manifest
    return summarise(
        map(item_from_row, folder.stream("items.jsonl")),
        outcomes,
        folder.document("rule.json") or {},
        benchmarks=folder.benchmarks(),
        judge=one_judge(folder.stream("judge.jsonl"), folder.document("judge.json")),
        fingerprints=folder.fingerprints(),
        aggregations=aggregations,
        sandbox=(folder.document("sandbox.json") or {"used": []})["used"],
        asked={name: asked_of(manifest, name) for name in manifest.get("generation", {})},
        **more,
    )
