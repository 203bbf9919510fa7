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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval_suite import comas_table, steps, subset
from eval_suite.folder import PARTS, EvalFolder
from eval_suite.generation import Generation
from eval_suite.items import Item, Response
from eval_suite.metrics.aggregate import SIXTH_CALL
from eval_suite.options import EvalOptions
from eval_suite.pipeline import EvalJob, open_judge, open_sandbox, parse_benchmarks
from eval_suite.reporter import SILENT, Reporter
from eval_suite.results import is_evaluation
from eval_suite.sandbox.behaviour import ComparedBy, ProgramVote, compared_by
from eval_suite.tasks import BENCHMARKS, Loaded
from mmcorl.algo.seeds import noise_seed
from mmcorl.answers import Equivalence
from mmcorl.errors import RunError, UserError
from mmcorl.labels.voting import TieRule
from mmcorl.policy.prompt_styles import INSTRUCTIONS
from mmcorl.report import table

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
        """The content of comas.json."""
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
    sources = parse_benchmarks(benchmarks)
    job = EvalJob.plan(str(model), out / DRAFTS, sources, options)
    job.check()
    loaded = {
        name: subset.load(
            BENCHMARKS[name],
            source,
            subset.Subset(subset.parse(options.subset, SIZES.get(name)), options.subset_seed, options.limit),
        )
        for name, source in sources.items()
    }
    sandbox = open_sandbox(options, [item for part in loaded.values() for item in part.items], reporter)
    sixth_job = replace(
        job,
        out=out / SIXTH,
        generation={name: _sixth(drafting) for name, drafting in job.generation.items()},
        aggregations=dict.fromkeys(loaded, SIXTH_CALL),
    )
    manifest = job.manifest(loaded) | {"protocol": "comas"}
    sixth_manifest = sixth_job.manifest(loaded) | {"protocol": "comas", "drafts": manifest["generation"]}
    if not is_evaluation(job.out):
        job.check_adapter()
    with (
        EvalFolder(job.out, manifest) as drafts,
        EvalFolder(sixth_job.out, sixth_manifest) as sixth,
        job.checkpoint() as checkpoint,
    ):
        calls = {
            name: SixthCall(checkpoint, sixth_job.generation[name], drafting)
            for name, drafting in job.generation.items()
        }
        _answer(drafts, sixth, loaded, calls, reporter)
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


def _answer(
    drafts: EvalFolder,
    sixth: EvalFolder,
    loaded: Mapping[str, Loaded],
    calls: Mapping[str, SixthCall],
    reporter: Reporter,
) -> None:
    """Sample the drafts of every benchmark, then the sixth calls that read them."""
    askable = {}
    for name, copy in loaded.items():
        for note in copy.notes:
            reporter.note(f"{name}: {note}")
        for folder in (drafts, sixth):
            folder.keep_items(copy.items)
        askable[name] = steps.askable(drafts, copy.items, calls[name].draft_obstacle, reporter=reporter)
    for name, items in askable.items():
        draft = partial(calls[name].draft, reporter)
        steps.generate(drafts, items, calls[name].drafting, draft, doing="answering (drafts)", reporter=reporter)
    _require_same_drafts(drafts, sixth)
    texts = _texts(drafts)
    for name, copy in loaded.items():
        call = calls[name]
        call.texts = texts
        items = steps.askable(sixth, copy.items, call.obstacle, reporter=reporter)
        steps.generate(sixth, items, call.settings, call.chunk, doing="answering (sixth call)", reporter=reporter)


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
    names = ("pass@1", f"avg@{k}", f"maj@{k}", f"pass@{k}")
    return {name: _summary(drafts, name) for name in names} | {SIXTH_CALL: _summary(sixth, SIXTH_CALL)}


def program_comparisons(drafts: EvalFolder) -> dict[str, dict[ComparedBy, int]]:
    """Count, per coding benchmark, the problems whose programs voted by behaviour, by syntax tree, or not at all."""
    problems: dict[str, dict[str, list[ProgramVote]]] = {}
    for row in drafts.rows("behaviour.jsonl"):
        acts = ProgramVote(row["outputs"], row["tree"])
        problems.setdefault(row["benchmark"], {}).setdefault(row["id"], []).append(acts)
    return {name: compared_by(by_id.values()) for name, by_id in problems.items()}


class SixthCall:
    """The calls of one benchmark: drafts first, then every item with its drafts (`texts`)."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        settings: Generation,
        drafting: Generation,
        texts: Mapping[tuple[str, str], Sequence[str]] | None = None,
    ) -> None:
        self.checkpoint, self.settings, self.drafting, self.texts = checkpoint, settings, drafting, texts or {}

    def draft_obstacle(self, item: Item) -> str | None:
        """Return why an item cannot be drafted; None if it can."""
        return self.checkpoint.check(self.drafting, item)

    def draft(self, reporter: Reporter, settings: Generation, items: Sequence[Item], number: int) -> Iterable[Response]:
        """Sample the drafts of one chunk of items."""
        if number == 0:
            self.warn_of_room(reporter)
        return self.checkpoint.chunk(settings, items, number)

    def chunk(self, settings: Generation, items: Sequence[Item], number: int) -> Iterable[Response]:
        """Sample the sixth responses of one chunk of items."""
        return self.checkpoint.chunk(settings, [self.with_drafts(item) for item in items], number)

    def obstacle(self, item: Item) -> str | None:
        """Return why an item cannot be asked: it has no drafts, or they leave no room."""
        if (item.benchmark, item.id) not in self.texts:
            return "it has no drafts"
        try:
            return self.checkpoint.check(self.settings, self.with_drafts(item))
        except UserError as error:
            return str(error)

    def with_drafts(self, item: Item) -> Item:
        """Return the item as the sixth call reads it."""
        texts = self.texts[item.benchmark, item.id]
        return replace(item, question=sixth_prompt(item.question + INSTRUCTIONS[self.drafting.style], texts))

    def warn_of_room(self, reporter: Reporter) -> None:
        """Warn, before drafts are made, where all of them may not fit the prompt of the sixth call."""
        how = self.drafting
        context, most = self.checkpoint.context(how), (how.samples + 1) * how.max_new_tokens
        if context is not None and most > context:
            reporter.note(
                f"{how.samples} drafts and a sixth call of up to {how.max_new_tokens} tokens each may need "
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


def _sixth(drafting: Generation) -> Generation:
    """Settings of the sixth call: those of a draft, once. Its prompt already holds the drafts' instruction."""
    # Another seed: the sixth call must not draw with the noise of the first draft.
    return replace(drafting, samples=1, style="plain", seed=noise_seed(drafting.seed, SIXTH_CALL, 0, 0))


def _summary(folder: EvalFolder, aggregation: str) -> dict[str, Any]:
    names = dict.fromkeys(item.benchmark for item in folder.items())
    with Equivalence() as relation:
        return steps.pooled_summary(
            folder, folder.outcomes(), dict.fromkeys(names, aggregation), tie=TIES, relation=relation
        )


def _texts(drafts: EvalFolder) -> dict[tuple[str, str], list[str]]:
    """The drafts of every item, in the order they were drawn."""
    texts: dict[tuple[str, str], list[str]] = {}
    for response in sorted(drafts.responses(), key=lambda response: response.sample):
        texts.setdefault((response.benchmark, response.id), []).append(response.text)
    return texts


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
        fresh = results.out / f".{name}.new"
        try:
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(results.out / name)
        except OSError as error:
            raise RunError(
                f"{results.out / name} cannot be written ({error.strerror}): free space or mend the permissions, and "
                "give the same command again"
            ) from error
