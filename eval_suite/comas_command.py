"""`mmcorl eval ... --protocol comas`: drafts, a sixth call that reads them, and one table of every way to count.

The folder holds two ordinary evaluations, `drafts` and `sixth`, which every other command takes (`grade`, `compare`,
`ensemble`, `table`), and comas.json with all columns. Killed anywhere, the same command goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval_suite import comas, comas_table, pipeline, program_votes, subset
from eval_suite.commands import (
    Checkpoint,
    check_adapter,
    check_early,
    judge_of,
    manifest_of,
    sandbox_of,
    settings_of,
    sources_of,
    title_of,
)
from eval_suite.evaluations import is_evaluation
from eval_suite.folder import PARTS, EvalFolder
from eval_suite.items import Item, Response
from eval_suite.metrics.aggregate import SIXTH_CALL
from eval_suite.tasks import BENCHMARKS
from mmcorl.errors import RunError, UserError
from mmcorl.policy.prompt_styles import INSTRUCTIONS
from mmcorl.report import table

if TYPE_CHECKING:
    from eval_suite.generate import Generation

DRAFTS, SIXTH = PARTS
_RESULTS = (comas_table.FILE, "results.md", "results.csv", "results.tex")


def evaluate(arguments: argparse.Namespace) -> int:
    """Run the protocol over the benchmarks named, or go on with it; print and write its tables."""
    _fill_in(arguments)
    _check_out(arguments.out)
    judge = judge_of(arguments)
    sources = sources_of(arguments.benchmarks)
    settings = settings_of(arguments, sources)
    check_early(arguments, arguments.out / DRAFTS, settings)
    loaded = {
        name: subset.load(
            BENCHMARKS[name],
            source,
            subset.Subset(
                subset.parse(arguments.subset, comas.SIZES.get(name)), arguments.subset_seed, arguments.limit
            ),
        )
        for name, source in sources.items()
    }
    items = [item for one in loaded.values() for item in one.items]
    last = {name: _sixth(one) for name, one in settings.items()}
    sandbox = sandbox_of(arguments, items)
    manifest = manifest_of(arguments, loaded, settings) | {"protocol": "comas"}
    manifest_last = manifest_of(arguments, loaded, last) | {
        "protocol": "comas",
        "drafts": manifest["generation"],
        "aggregations": dict.fromkeys(loaded, SIXTH_CALL),
    }
    if not is_evaluation(arguments.out / DRAFTS):
        check_adapter(arguments)
    with (
        EvalFolder(arguments.out / DRAFTS, manifest) as drafts,
        EvalFolder(arguments.out / SIXTH, manifest_last) as sixth,
        Checkpoint(arguments) as model,
    ):
        askable = {}
        for name, one in loaded.items():
            for note in one.notes:
                arguments.say(f"{name}: {note}")
            for folder in (drafts, sixth):
                folder.keep_items(one.items)
            askable[name] = pipeline.askable(
                drafts, one.items, partial(model.check, settings[name]), quiet=arguments.quiet
            )
        for name, asked in askable.items():
            how = settings[name]
            warn = partial(_warn_of_room, model, how, arguments.say)
            pipeline.generate(
                drafts,
                asked,
                how.samples,
                how.chunk,
                partial(_draft, model, how, warn),
                doing="answering (drafts)",
                quiet=arguments.quiet,
            )
        _same_drafts(drafts, sixth)
        for name, one in loaded.items():
            call = SixthCall(model, last[name], settings[name], _texts(drafts))
            asked = pipeline.askable(sixth, one.items, call.obstacle, quiet=arguments.quiet)
            chunk = last[name].chunk
            pipeline.generate(sixth, asked, 1, chunk, call.chunk, doing="answering (sixth call)", quiet=arguments.quiet)
        model.release()  # A judge in this process needs the room.
        title = title_of(arguments.model)
        for folder in (drafts, sixth):
            what = "drafts" if folder is drafts else "sixth calls"
            pipeline.grade(folder, arguments.mcq_policy, sandbox, what=what, quiet=arguments.quiet)
            if folder is drafts and sandbox is not None:
                program_votes.observe(drafts, sandbox, quiet=arguments.quiet)
            if judge is not None:
                pipeline.judge(folder, judge, again=arguments.judge_again, what=what, quiet=arguments.quiet)
            pipeline.sum_up(folder, f"{title}, {'drafts' if folder is drafts else 'sixth call'}")
        told = {
            "protocol": "comas",
            "model": str(arguments.model),
            "drafts": arguments.samples,
            "tie_rule": comas.TIES,
            "programs_compared_by": comas.program_comparisons(drafts),
            "columns": comas.columns(drafts, sixth, arguments.samples),
        }
        _write(arguments.out, told)
    if arguments.json:
        print(json.dumps(told))
        return 0
    comas_table.show([(arguments.out.name, told)], "terminal")
    print(f"drafts: {arguments.out / DRAFTS / 'samples.html'}\nsixth calls: {arguments.out / SIXTH / 'samples.html'}")
    print(f"results: {arguments.out / comas_table.FILE}")
    return 0


def _fill_in(arguments: argparse.Namespace) -> None:
    """The protocol's own numbers where the options say nothing."""
    if arguments.aggregation is not None:
        raise UserError(
            f"--protocol comas reports every aggregation of its drafts and the sixth call, so --aggregation "
            f"{arguments.aggregation} has no place beside it: leave it out"
        )
    for name, value in (
        ("samples", comas.DRAFTS),
        ("temperature", comas.TEMPERATURE),
        ("top_p", comas.TOP_P),
        ("max_new_tokens", comas.MAX_NEW_TOKENS),
    ):
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    if arguments.samples < 2:
        raise UserError(f"--protocol comas votes over several drafts, and --samples {arguments.samples} leaves no vote")


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


def _sixth(drafts: Generation) -> Generation:
    """How the sixth call is made: as a draft, once. Its prompt holds the drafts' instruction already."""
    from mmcorl.trainer.worker import noise_seed

    # Another seed: the sixth call must not draw with the noise of the first draft.
    return replace(drafts, samples=1, style="plain", seed=noise_seed(drafts.seed, SIXTH_CALL, 0, 0))


class SixthCall:
    """One benchmark's sixth call: every item with its drafts."""

    def __init__(
        self,
        model: Checkpoint,
        settings: Generation,
        drafting: Generation,
        texts: Mapping[tuple[str, str], Sequence[str]],
    ) -> None:
        self.model, self.settings, self.texts = model, settings, texts
        self.instruction = INSTRUCTIONS[drafting.style]

    def chunk(self, items: Sequence[Item], number: int) -> Iterable[Response]:
        """The sixth responses of one chunk of items."""
        return self.model.chunk(self.settings, [self.asked(item) for item in items], number)

    def obstacle(self, item: Item) -> str | None:
        """Why an item cannot be asked: it has no drafts, or they leave no room."""
        if (item.benchmark, item.id) not in self.texts:
            return "it has no drafts"
        try:
            return self.model.check(self.settings, self.asked(item))
        except UserError as error:
            return str(error)

    def asked(self, item: Item) -> Item:
        """The item as the sixth call reads it."""
        texts = self.texts[item.benchmark, item.id]
        return replace(item, question=comas.sixth_prompt(item.question + self.instruction, texts))


def _draft(
    model: Checkpoint, settings: Generation, before: Callable[[], None], items: Sequence[Item], number: int
) -> Iterable[Response]:
    if number == 0:
        before()
    return model.chunk(settings, items, number)


def _warn_of_room(model: Checkpoint, settings: Generation, say: Callable[[str], None]) -> None:
    """Said before the drafts are made: they all stand in the prompt of the sixth call."""
    context, most = model.generator(settings).context, (settings.samples + 1) * settings.max_new_tokens
    if context is not None and most > context:
        say(
            f"{settings.samples} drafts and a sixth call of up to {settings.max_new_tokens} tokens each may need "
            f"{most} tokens, but the context holds {context}: problems whose drafts turn out too long for the sixth "
            "call count as wrong there; a lower --max-new-tokens avoids it"
        )


def _texts(drafts: EvalFolder) -> dict[tuple[str, str], list[str]]:
    """The drafts of every item, in the order they were drawn."""
    told: dict[tuple[str, str], list[str]] = {}
    for response in sorted(drafts.responses(), key=lambda response: response.sample):
        told.setdefault((response.benchmark, response.id), []).append(response.text)
    return told


def _same_drafts(drafts: EvalFolder, sixth: EvalFolder) -> None:
    """Refuse to go on with sixth calls that read other drafts."""
    rows = sorted(drafts.responses(), key=lambda one: (one.benchmark, one.id, one.sample))
    digest = hashlib.sha256(json.dumps([vars(row) for row in rows]).encode()).hexdigest()
    read = sixth.facts("read.json")
    if read is None or not sixth.rows("responses.jsonl"):
        sixth.write("read.json", json.dumps({"drafts": digest}) + "\n")
    elif read["drafts"] != digest:
        raise UserError(
            f"the sixth calls in {str(sixth.path)!r} have read other drafts than now stand in {str(drafts.path)!r}: "
            "remove both folders, or choose another one"
        )


def _write(out: Path, told: Mapping[str, Any]) -> None:
    """comas.json and the tables, each in one piece."""
    results = [(out.name, told)]
    grids = comas_table.comas_grids(results)
    for name, text in zip(
        _RESULTS,
        (
            json.dumps(told, indent=1, allow_nan=False) + "\n",
            table.markdown(grids),
            comas_table.comas_csv(results),
            table.latex(grids),
        ),
        strict=True,
    ):
        fresh = out / f".{name}.new"
        try:
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(out / name)
        except OSError as error:
            raise RunError(
                f"{out / name} cannot be written ({error.strerror}): free space or mend the permissions, and give the "
                "same command again"
            ) from error
