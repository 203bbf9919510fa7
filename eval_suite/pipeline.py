"""The steps of an evaluation, each over files: generate, grade, judge, sum up.

Any step can be done again, and one that was killed goes on where it stood. Only `generate` needs a model, only
`judge` an endpoint or a judge model; a folder of responses is graded on any machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from eval_suite.counting import counted
from eval_suite.folder import EvalFolder, key_of
from eval_suite.grading import Grader
from eval_suite.grading.verdict import GRADER, McqPolicy
from eval_suite.items import Item, Response
from eval_suite.metrics.outcomes import Outcome, outcomes_of
from eval_suite.metrics.summary import summarise, summarise_outcomes
from eval_suite.program_votes import note_sandbox
from eval_suite.results import facts, write_tables
from eval_suite.samples_page import write_view
from eval_suite.tasks import BENCHMARKS
from mmcorl.errors import RunError, UserError
from mmcorl.run.progress import task

if TYPE_CHECKING:
    from eval_suite.grading.judge import JudgeSettings, VllmJudge
    from eval_suite.sandbox.process import Sandbox

GRADED_AT_ONCE = 512
GRADINGS = ("rule.jsonl", "behaviour.jsonl", "judge.jsonl")
"""What is said of responses; of no worth once they are made again."""
UNCLEAR_SHARE = 0.2
"""From this share of unclear replies on a judge's way to answer is the matter, not its questions."""
Again = Literal["unclear", "all"]
"""Which verdicts of the same judge are asked for again, beside those that failed."""


def generate(
    folder: EvalFolder,
    items: Sequence[Item],
    samples: int,
    chunk: int,
    produce: Callable[[Sequence[Item], int], Iterable[Response]],
    *,
    doing: str = "answering",
    quiet: bool = False,
) -> None:
    """Fill responses.jsonl for items that are `askable`; `produce` answers one chunk of them.

    A chunk of which any row is missing is made again as a whole, so that a resumed run writes what an uninterrupted
    one would have written. What `produce` raises comes through.
    """
    name = items[0].benchmark
    have = {key_of(row) for row in folder.rows("responses.jsonl")}
    chunks = [items[start : start + chunk] for start in range(0, len(items), chunk)]
    whole = [all((item.benchmark, item.id, k) in have for item in part for k in range(samples)) for part in chunks]
    kept = {(item.benchmark, item.id) for part, done in zip(chunks, whole, strict=True) if done for item in part}
    again = {(item.benchmark, item.id) for item in items} - kept
    for file in ("responses.jsonl", *GRADINGS):
        folder.replace_rows(file, [row for row in folder.rows(file) if (row["benchmark"], row["id"]) not in again])
    with task(f"{name}: {doing}", len(items), quiet=quiet) as bar:
        for number, (part, done) in enumerate(zip(chunks, whole, strict=True)):
            if not done:
                folder.append("responses.jsonl", [vars(response) for response in produce(part, number)])
            bar.advance(len(part))


def askable(
    folder: EvalFolder, items: Sequence[Item], check: Callable[[Item], str | None], *, quiet: bool = False
) -> list[Item]:
    """The items of one benchmark that can be put to the model. Where any has been answered, all have been checked.

    `check` says of an item why it cannot be put to the model; None when it can. Such items go to unasked.jsonl, are
    told, and count as wrong: a benchmark is scored over all its items.

    Raises:
        UserError: not one item can be put to the model. What `check` raises comes through.
    """
    name = items[0].benchmark
    answered = {(row["benchmark"], row["id"]) for row in folder.rows("responses.jsonl")}
    unasked = {(row["benchmark"], row["id"]) for row in folder.rows("unasked.jsonl")}
    if not any((item.benchmark, item.id) in answered or (item.benchmark, item.id) in unasked for item in items):
        found = []
        with task(f"{name}: checking prompts", len(items), quiet=quiet) as bar:
            for item in items:
                reason = check(item)
                if reason is not None:
                    found.append({"benchmark": item.benchmark, "id": item.id, "reason": reason})
                bar.advance()
        if found:
            first = f"the first is {found[0]['id']!r}: {found[0]['reason']}"
            if len(found) == len(items):
                raise UserError(f"no item of {name} can be put to this model; {first}")
            verbs = "cannot be put to this model and", "counts" if len(found) == 1 else "count"
            print(f"{name}: {len(found)} of {len(items)} items {' '.join(verbs)} as wrong; {first}", file=sys.stderr)
            folder.append("unasked.jsonl", found)
            unasked = {(row["benchmark"], row["id"]) for row in found}
    return [item for item in items if (item.benchmark, item.id) not in unasked]


def grade(
    folder: EvalFolder, policy: McqPolicy, sandbox: Sandbox | None = None, *, what: str = "", quiet: bool = False
) -> None:
    """Fill rule.jsonl: the rule stage over all responses; rows of another grader version or policy are made again.

    Responses to coding problems are run in `sandbox`; without one they are refused. `what` names the responses beside
    the bar.
    """
    facts = {"name": GRADER[0], "version": GRADER[1], "mcq_policy": policy}
    if folder.facts("rule.json") != facts:
        # Verdicts are about the answers that the rules found; the judge's cache keeps what it said of each.
        for name in GRADINGS:
            folder.replace_rows(name, [])
        folder.write("rule.json", json.dumps(facts) + "\n")
    items = {(item.benchmark, item.id): item for item in folder.items()}
    done = {key_of(row) for row in folder.rows("rule.jsonl")}
    not_run = 0
    waiting = [one for one in folder.responses() if (one.benchmark, one.id, one.sample) not in done]
    if sandbox is not None and any(items[one.benchmark, one.id].kind == "code" for one in waiting):
        note_sandbox(folder, sandbox)
    with Grader(policy) as grader, task(f"grading {what}".strip(), len(waiting), quiet=quiet or not waiting) as bar:
        for start in range(0, len(waiting), GRADED_AT_ONCE):
            rows = []
            for response in waiting[start : start + GRADED_AT_ONCE]:
                row = _rule_row(items[response.benchmark, response.id], response, grader, sandbox)
                if row is None:
                    not_run += 1
                else:
                    rows.append(row)
                bar.advance()
            folder.append("rule.jsonl", rows)
    if not_run:
        raise RunError(
            f"the sandbox failed on {not_run} programs, which says nothing of them: the rest is graded, give the same "
            "command again for these"
        )


def _rule_row(item: Item, response: Response, grader: Grader, sandbox: Sandbox | None) -> dict[str, Any] | None:
    """The line of one response; None when its program could not be run for no fault of its own."""
    row: dict[str, Any] = {"benchmark": response.benchmark, "id": response.id, "sample": response.sample}
    if item.kind != "code":
        result = grader.rule(item, response)
        return row | {
            "answer": result.answer,
            "committed": result.committed,
            "cut_off": result.cut_off,
            "rule": result.rule,
            "reason": result.reason,
        }
    if sandbox is None:
        raise UserError(f"{item.benchmark} runs code that a model wrote, which is off: allow it with --run-code")
    from eval_suite.sandbox.code_task import grade_code

    graded = grade_code(item, response, sandbox)
    if graded.result is not None and graded.result.harness_error:
        return None
    verdict = graded.verdict
    return row | {
        "answer": verdict.answer,
        "committed": verdict.committed,
        "cut_off": verdict.cut_off,
        "rule": verdict.rule,
        "reason": verdict.reason,
        "tests": [vars(test) for test in graded.result.tests] if graded.result is not None else [],
    }


def judge(
    folder: EvalFolder,
    judge: JudgeSettings | VllmJudge,
    *,
    again: Again | None = None,
    what: str = "",
    quiet: bool = False,
) -> None:
    """Fill judge.jsonl: what the rules did not credit although it commits to an answer, and nothing else.

    Verdicts that failed are asked for again, and so are those of another judge or prompt version; with `again`,
    also those that were unclear, or all of them. `what` names the responses beside the bar.
    """
    from eval_suite.grading.judge import JudgeRequest, JudgeSettings, VerdictCache, judge_all, key

    name = judge.facts()
    items = {(item.benchmark, item.id): item for item in folder.items()}
    requests = {
        key_of(row): JudgeRequest(item.for_judge, item.choices, item.gold, row["answer"])
        for row in folder.rows("rule.jsonl")
        if row["committed"] and not row["cut_off"] and not row["rule"]
        if (item := items[row["benchmark"], row["id"]]).kind != "code"
    }
    stale = {"failed", "unclear"} if again == "unclear" else {"failed"}
    kept = [
        row
        for row in folder.rows("judge.jsonl")
        if key_of(row) in requests and _by(row, name) and row["verdict"] not in stale and again != "all"
    ]
    with VerdictCache(folder.path / "verdicts.sqlite") as cache:
        if again == "all":
            cache.forget([key(request, name["model"]) for request in requests.values()])
        folder.replace_rows("judge.jsonl", kept)
        folder.write("judge.json", json.dumps(name) + "\n")
        done = {key_of(row) for row in kept}
        waiting = [one for one in requests if one not in done]
        failed = 0
        with task(f"judging {what}".strip(), len(waiting), quiet=quiet or not waiting) as bar:

            def keep(number: int, verdict: str, raw: str) -> None:
                benchmark, identity, sample = waiting[number]
                row = {"benchmark": benchmark, "id": identity, "sample": sample, "verdict": verdict, "raw": raw}
                folder.append("judge.jsonl", [row | name])
                nonlocal failed
                if verdict == "failed":
                    failed += 1
                    bar.update(f"{failed:,} without a reply")
                else:
                    bar.advance()

            counts = judge_all([requests[one] for one in waiting], judge, keep, cache=cache)
    for sentence in dict.fromkeys([counts.stopped, *(problem.sentence for problem in counts.problems.values())]):
        if sentence:
            print(f"judge: {sentence}", file=sys.stderr)
    told = folder.rows("judge.jsonl")
    if sentence := _mostly_unclear(told, endpoint=isinstance(judge, JudgeSettings)):
        print(f"judge: {sentence}", file=sys.stderr)
    # In the order of the responses, whatever order the replies came in.
    place = {one: number for number, one in enumerate(requests)}
    folder.replace_rows("judge.jsonl", sorted(told, key=lambda row: place[key_of(row)]))


def _mostly_unclear(rows: Sequence[Mapping[str, Any]], *, endpoint: bool) -> str:
    """What to say of a judge that does not keep to its menu; empty for one that does."""
    replies = [row for row in rows if row["verdict"] != "failed"]
    unclear = [row["raw"] for row in replies if row["verdict"] == "unclear"]
    if len(unclear) <= UNCLEAR_SHARE * len(replies):
        return ""
    more = "give one that thinks first more room (--judge-set max_tokens=512), or " if endpoint else ""
    return (
        f"{len(unclear):,} of {counted(len(replies), 'reply', 'replies')} unclear, the first {unclear[0][:80]!r}: it "
        f"must be the one word `correct` or `incorrect`; {more}take another judge, and ask with --judge-again unclear"
    )


def sum_up(folder: EvalFolder, title: str) -> dict[str, Any]:
    """summary.json, its tables and samples.html from the files: scores, what produced them, every response."""
    items, item_rows = folder.items(), folder.rows("items.jsonl")
    names = {item.benchmark for item in items}
    known = {name: BENCHMARKS[name] for name in names if name in BENCHMARKS}
    grader, judge = folder.facts("rule.json"), folder.facts("judge.json")
    summary = summarise(
        items,
        folder.responses(),
        folder.rows("rule.jsonl"),
        folder.rows("judge.jsonl"),
        {name: benchmark.sub_scores for name, benchmark in known.items()},
        grader or {},
        judge=judge,
        behaviour_rows=folder.rows("behaviour.jsonl"),
        samples=folder.manifest.get("samples_by_benchmark"),
        fingerprints=folder.fingerprints(),
        full_sizes={name: benchmark.rows for name, benchmark in known.items()},
        aggregations=folder.manifest.get("aggregations"),
        unasked=folder.rows("unasked.jsonl"),
        caveats={name: benchmark.caveats for name, benchmark in known.items()},
        sandbox=(folder.facts("sandbox.json") or {"used": []})["used"],
    )
    folder.write("summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    write_tables(folder, title, summary)
    with folder.writing("samples.html"):
        write_view(
            folder.path / "samples.html",
            title=title,
            item_rows=item_rows,
            responses=folder.responses(),
            rule_rows=folder.rows("rule.jsonl"),
            judge_rows=folder.rows("judge.jsonl"),
            facts=facts(folder),
        )
    return summary


def outcomes(folder: EvalFolder) -> list[Outcome]:
    """What came of every response of a graded folder."""
    return outcomes_of(
        folder.items(),
        folder.responses(),
        folder.rows("rule.jsonl"),
        folder.rows("judge.jsonl"),
        folder.rows("behaviour.jsonl"),
        samples=folder.manifest.get("samples_by_benchmark"),
    )


def pooled_summary(folder: EvalFolder, pooled: Sequence[Outcome], aggregations: Mapping[str, str]) -> dict[str, Any]:
    """Summary of the pooled responses of several checkpoints to the items of `folder`; how, by benchmark."""
    items = folder.items()
    names = {item.benchmark for item in items}
    known = {name: BENCHMARKS[name] for name in names if name in BENCHMARKS}
    return summarise_outcomes(
        items,
        pooled,
        {name: benchmark.sub_scores for name, benchmark in known.items()},
        folder.facts("rule.json") or {},
        judge=folder.facts("judge.json"),
        fingerprints=folder.fingerprints(),
        full_sizes={name: benchmark.rows for name, benchmark in known.items()},
        aggregations=aggregations,
        caveats={name: benchmark.caveats for name, benchmark in known.items()},
        sandbox=(folder.facts("sandbox.json") or {"used": []})["used"],
    )


def _by(row: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    return all(row.get(key) == value for key, value in facts.items())
