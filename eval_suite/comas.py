"""The CoMAS protocol: several drafts per problem, and a sixth call that reads them.

CoMAS (arXiv 2510.08529) draws five drafts at temperature 0.7 and grades a sixth text that reads them; for code its
grader runs every block of that text, so quoting five drafts scores pass@5. Here the sixth text gives one program like
any other, and drafts also vote by what their programs do on public examples, as in the paper. Every score names its
aggregation, because these are different numbers.

Protocol and table sizes are CoMAS'; which problems make up its subsets is unpublished, so ours are drawn by a seed.

The folder holds two ordinary evaluations, `drafts` and `sixth`, which every other command takes (`grade`, `compare`,
`ensemble`, `table`), and comas.json with all columns. The same command resumes an interrupted one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval_suite import comas_table, steps
from eval_suite.folder import PARTS, EvalFolder
from eval_suite.generation import Generation
from eval_suite.items import Item, Response
from eval_suite.metrics.aggregate import SIXTH_CALL
from eval_suite.options import EvalOptions
from eval_suite.pipeline import open_judge, prepare
from eval_suite.reporter import SILENT, Reporter
from eval_suite.results import unfinished
from eval_suite.sandbox.behaviour import ComparedBy, ProgramVote, compared_by
from mmcorl.algo.seeds import noise_seed
from mmcorl.answers import Equivalence
from mmcorl.errors import RunError, UserError
from mmcorl.labels.voting import TieRule
from mmcorl.policy.prompt_styles import INSTRUCTIONS
from mmcorl.report import table
from mmcorl.run.folder import atomic_write

if TYPE_CHECKING:
    from eval_suite.checkpoint import Checkpoint

DRAFTS, SIXTH = PARTS
DEFAULTS = {"samples": 5, "temperature": 0.7, "top_p": 0.95, "max_new_tokens": 2048}
"""The protocol's numbers; `top_p` is the paper's (CoMAS names none), `max_new_tokens` bounds a draft and the sixth
call."""
SIZES: Mapping[str, int] = {"gsm8k": 500, "math500": 500, "mmlu": 500, "gpqa_main": 448, "scibench": 499} | {
    "humaneval": 164,
    "mbpp": 500,
    "mbpp_zero_shot": 500,
}
"""Problems of each set in CoMAS' tables: whole sets, except GSM8K (of 1,319), MMLU (of 14,042) and SciBench (of 692);
MBPP is asked without examples there (`mbpp_zero_shot`)."""
TIES: TieRule = "first_seen"
"""Drafts of one checkpoint come in no order, so the first of a tie is as good as any."""
_RESULTS = (comas_table.FILE, "results.md", "results.csv", "results.tex")


@dataclass(frozen=True)
class ComasResults(comas_table.ComasTable):
    """The results of one checkpoint under the protocol."""

    out: Path

    def as_dict(self) -> Mapping[str, Any]:
        return self.results[0][1]

    def files(self) -> dict[str, Path]:
        """Pages of all samples, and the results."""
        return {
            "drafts": self.out / DRAFTS / "samples.html",
            "sixth calls": self.out / SIXTH / "samples.html",
            "results": self.out / comas_table.FILE,
        }


def evaluate_comas(
    model: str | Path,
    benchmarks: Sequence[str] | str,
    out: str | Path,
    options: EvalOptions | None = None,
    *,
    reporter: Reporter = SILENT,
    **changes: Any,
) -> ComasResults:
    """Evaluate a checkpoint under the protocol: drafts, votes and the sixth call; arguments as for `evaluate`.

    The same call resumes an interrupted evaluation.

    Raises:
        UserError: a benchmark, checkpoint, option or folder that cannot be used; before work starts.
    """
    options, out = _with_defaults(EvalOptions.build(options, changes)), Path(out)
    _check_out(out)
    judge = open_judge(options)
    job, loaded, sandbox = prepare(str(model), out / DRAFTS, benchmarks, options, reporter, SIZES)
    sixth_job = replace(
        job,
        out=out / SIXTH,
        # Another seed: the sixth call must not draw with the noise of the first draft. Its prompt already holds the
        # drafts' instruction.
        generation={
            name: replace(how, samples=1, style="plain", seed=noise_seed(how.seed, SIXTH_CALL, 0, 0))
            for name, how in job.generation.items()
        },
        aggregations=dict.fromkeys(loaded, SIXTH_CALL),
    )
    manifest = job.manifest(loaded) | {"protocol": "comas"}
    sixth_manifest = sixth_job.manifest(loaded) | {"protocol": "comas", "drafts": manifest["generation"]}
    with (
        EvalFolder(job.out, manifest) as drafts,
        EvalFolder(sixth_job.out, sixth_manifest) as sixth,
        job.checkpoint() as checkpoint,
    ):
        for name, copy in loaded.items():
            for note in copy.notes:
                reporter.note(f"{name}: {note}")
        if unfinished(drafts):
            for drafting in job.generation.values():
                warn_of_room(checkpoint, drafting, reporter)
        job.answer(drafts, loaded, checkpoint, reporter, "answering (drafts)")
        _require_same_drafts(drafts, sixth)
        calls = SixthCalls(checkpoint, job.generation, drafts.responses())
        sixth_job.answer(sixth, loaded, calls, reporter, "answering (sixth call)")
        checkpoint.release()  # a judge in this process needs the room
        for folder, what in ((drafts, "drafts"), (sixth, "sixth calls")):
            steps.grade(folder, job.mcq_policy, sandbox, what=what, reporter=reporter)
            if folder is drafts and sandbox is not None:
                steps.observe(drafts, sandbox, reporter=reporter)
            if judge is not None:
                steps.judge(folder, judge, again=options.judge_again, what=what, reporter=reporter)
            steps.sum_up(folder, f"{folder.title}, {what.removesuffix('s') if folder is sixth else what}")
        samples = options.samples or DEFAULTS["samples"]
        content = {
            "protocol": "comas",
            "model": str(model),
            "drafts": samples,
            "tie_rule": TIES,
            "programs_compared_by": program_comparisons(drafts),
            "columns": columns(drafts, sixth, int(samples)),
        }
        results = ComasResults([(out.name, content)], out)
        _write(results)
    return results


def sixth_prompt(question: str, drafts: Sequence[str]) -> str:
    """Return the prompt of the sixth call: the task, the drafts, the request to finish, in CoMAS' words.

    `question` is the whole prompt that the drafts answered, with its request for a format.
    """
    if not drafts:
        raise UserError("a sixth call reads drafts, and there are none: sample some first")
    solutions = "".join(f"[Solution {number}]:\n{draft}\n\n" for number, draft in enumerate(drafts, 1))
    return (
        f"[Task]:\n{question}\n\n{solutions}Given the task and all the above solutions, reason over them carefully "
        "and provide a final answer to the task."
    )


def columns(drafts: EvalFolder, sixth: EvalFolder, k: int) -> dict[str, dict[str, Any]]:
    """Return summaries by aggregation: pass@1, avg@k, maj@k and pass@k of the drafts, and the sixth call.

    pass@1 of k drafts is their mean, so it equals avg@k; both are listed.
    """
    columns = {}
    with Equivalence() as relation:
        for name in ("pass@1", f"avg@{k}", f"maj@{k}", f"pass@{k}", SIXTH_CALL):
            folder = sixth if name == SIXTH_CALL else drafts
            how = dict.fromkeys((item.benchmark for item in folder.items()), name)
            columns[name] = steps.summary_of(folder, folder.outcomes(), how, tie=TIES, relation=relation)
    return columns


def program_comparisons(drafts: EvalFolder) -> dict[str, dict[ComparedBy, int]]:
    """Count, per coding benchmark, the problems whose programs voted by behaviour, by syntax tree, or not at all."""
    problems: dict[str, dict[str, list[ProgramVote]]] = {}
    for row in drafts.rows("behaviour.jsonl"):
        acts = ProgramVote(row["outputs"], row["tree"])
        problems.setdefault(row["benchmark"], {}).setdefault(row["id"], []).append(acts)
    return {name: compared_by(by_id.values()) for name, by_id in problems.items()}


class SixthCalls:
    """Asks a checkpoint every item with its drafts; stands in for the checkpoint itself.

    `drafting`: how each benchmark was drafted; `drafts`: all responses to that.
    """

    def __init__(self, checkpoint: Checkpoint, drafting: Mapping[str, Generation], drafts: Iterable[Response]) -> None:
        self.checkpoint, self.drafting = checkpoint, drafting
        self.texts: dict[tuple[str, str], list[str]] = {}
        for draft in sorted(drafts, key=lambda draft: draft.sample):
            self.texts.setdefault((draft.benchmark, draft.id), []).append(draft.text)

    def check(self, settings: Generation, item: Item) -> str | None:
        """Return why an item cannot be asked: it has no drafts, or they leave no room."""
        if (item.benchmark, item.id) not in self.texts:
            return "it has no drafts"
        try:
            return self.checkpoint.check(settings, self.with_drafts(item))
        except UserError as error:
            return str(error)

    def chunk(self, settings: Generation, items: Sequence[Item], number: int) -> Iterable[Response]:
        """Sample the sixth responses of one chunk of items."""
        return self.checkpoint.chunk(settings, [self.with_drafts(item) for item in items], number)

    def with_drafts(self, item: Item) -> Item:
        """Return the item as the sixth call reads it."""
        question = item.question + INSTRUCTIONS[self.drafting[item.benchmark].style]
        return replace(item, question=sixth_prompt(question, self.texts[item.benchmark, item.id]))


def warn_of_room(checkpoint: Checkpoint, drafting: Generation, reporter: Reporter) -> None:
    """Warn, before drafts are made, where all of them may not fit the prompt of the sixth call."""
    context, most = checkpoint.context(drafting), (drafting.samples + 1) * drafting.max_new_tokens
    if context is not None and most > context:
        reporter.note(
            f"{drafting.samples} drafts and a sixth call of up to {drafting.max_new_tokens} tokens each may need "
            f"{most} tokens, but the context holds {context}: problems whose drafts turn out too long for the "
            "sixth call count as wrong there; a lower --max-new-tokens avoids it"
        )


def _with_defaults(options: EvalOptions) -> EvalOptions:
    if options.aggregation is not None:
        raise UserError(
            f"--protocol comas reports every aggregation of its drafts and the sixth call, so --aggregation "
            f"{options.aggregation} has no place beside it: leave it out"
        )
    unset = {name: value for name, value in DEFAULTS.items() if getattr(options, name) is None}
    options = EvalOptions.build(options, unset)
    if options.samples is not None and options.samples < 2:
        raise UserError(f"--protocol comas votes over several drafts, and --samples {options.samples} leaves no vote")
    return options


def _check_out(out: Path) -> None:
    ours = {DRAFTS, SIXTH, *_RESULTS}
    if out.is_dir() and (
        strange := sorted(path.name for path in out.iterdir() if path.name not in ours and path.name[0] != ".")
    ):
        raise UserError(
            f"{str(out)!r} holds something else than this protocol's results ({strange[0]!r}): choose another folder"
        )
    if out.exists() and not out.is_dir():
        raise UserError(f"{str(out)!r} is a file: choose a folder for the results")


def _require_same_drafts(drafts: EvalFolder, sixth: EvalFolder) -> None:
    """Refuse to resume sixth calls that read other drafts."""
    rows = sorted(drafts.responses(), key=lambda row: (row.benchmark, row.id, row.sample))
    digest = hashlib.sha256(json.dumps([vars(row) for row in rows]).encode()).hexdigest()
    read = sixth.facts("read.json")
    if read is None or not sixth.rows("responses.jsonl"):
        sixth.write("read.json", json.dumps({"drafts": digest}) + "\n")
    elif read["drafts"] != digest:
        raise UserError(
            f"the sixth calls in {str(sixth.path)!r} have read other drafts than now stand in {str(drafts.path)!r}: "
            "remove both folders, or choose another one"
        )


def _write(results: ComasResults) -> None:
    """Write comas.json and the tables, each atomically."""
    tables = results.tables()
    content = json.dumps(results.as_dict(), indent=1, allow_nan=False) + "\n"
    for name, text in zip(_RESULTS, (content, table.markdown(tables), results.csv(), table.latex(tables)), strict=True):
        try:
            atomic_write(results.out / name, text)
        except OSError as error:
            raise RunError(
                f"{results.out / name} cannot be written ({error.strerror}): free space or mend the permissions, and "
                "give the same command again"
            ) from error
