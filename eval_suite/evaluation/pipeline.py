"""Whole jobs: evaluate a checkpoint, grade a file of responses, grade or sum up a folder again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from eval_suite.answer_form import MATHEMATICS, answer_form, answers_of
from eval_suite.benchmarks import custom_data, subset
from eval_suite.benchmarks.custom_data import HELD_OUT, held_out, load_rows, open_rows, require_answers
from eval_suite.benchmarks.tasks import BENCHMARKS, Loaded, parse_benchmarks, unjudged
from eval_suite.evaluation import steps
from eval_suite.evaluation.generation import OWN_PROMPT, Generation, generation_for, training_of
from eval_suite.evaluation.protocols import aggregations_of, forms_of, under_protocol, with_judge_end
from eval_suite.metrics.prompt_protocol import grouped, sentence, settings_text
from eval_suite.options import DEFAULT_POLICY, CodeOptions, EvalOptions, GradeOptions, GradingOptions, JudgeOptions
from eval_suite.reporter import SILENT, Reporter
from eval_suite.responses.match_rows import read_answers
from eval_suite.results.finished import Evaluation, is_evaluation, require_finished
from eval_suite.results.folder import VLMEVALKIT, EvalFolder, refuse_early
from eval_suite.results.tables import title
from mmcorl.apps.analysis.trained_with import adapter_trained_with, trained_with
from mmcorl.errors import RunError, UserError
from mmcorl.grading.grade_by_relation import how_compared
from mmcorl.grading.items import GradedReading, Item, McqPolicy
from mmcorl.policy.prompt_metadata import TrainedWith
from mmcorl.prompts.styles import PromptStyle
from mmcorl.run import provenance
from mmcorl.system.install_hints import naming_extras

if TYPE_CHECKING:
    from eval_suite.evaluation.checkpoint import Checkpoint
    from eval_suite.evaluation.comas import SixthCalls
    from mmcorl.grading.judge import JudgeSettings, VllmJudge
    from mmcorl.sandbox.process import Sandbox


@naming_extras()
def evaluate(
    model: str | Path,
    benchmarks: Sequence[str] | str,
    out: str | Path,
    options: EvalOptions | None = None,
    *,
    reporter: Reporter = SILENT,
    **changes: Any,
) -> Evaluation:
    """Sample responses of a checkpoint to benchmarks, grade them, judge them if a judge is named, and sum up.

    The same call resumes an interrupted evaluation.

    Args:
        model: checkpoint folder, hub id, `zoo:NAME` or `natural:NAME`.
        benchmarks: `NAME` from the hub, `NAME=PATH` of a local copy, or rows of one's own by another name.
        out: folder of the evaluation.
        options: how it is done; `changes` override its fields, as in `samples=8`.
        reporter: where progress goes; nowhere by default.

    Raises:
        UserError: a benchmark, checkpoint, option or folder that cannot be used; before work starts.
    """
    options = EvalOptions.build(options, changes)
    options = with_judge_end(options, options.protocol)
    if options.protocol == "comas":
        raise UserError("the CoMAS protocol asks twice, drafts and a sixth call: use evaluate_comas")
    judge = open_judge(options)
    job, loaded, sandbox = prepare(str(model), Path(out), benchmarks, options, reporter)
    pictured = {name: copy for name, copy in loaded.items() if options.blind and any(i.images for i in copy.items)}
    if options.blind and not pictured:
        raise UserError(f"blind=True hides pictures, and {', '.join(loaded)} has none: leave it out")
    with ExitStack() as stack:
        folder = stack.enter_context(EvalFolder(job.out, job.manifest(loaded)))
        provenance.begin(folder.path)
        for line in job.opening(loaded, options, judge):
            reporter.note(line)
        with job.checkpoint() as checkpoint:
            job.answer(folder, loaded, checkpoint, reporter)
            if pictured:
                again = job.blind(pictured)
                unseen = stack.enter_context(EvalFolder(again.out, again.manifest(pictured)))
                provenance.begin(unseen.path)
                again.answer(unseen, pictured, checkpoint, reporter, "answering with the picture hidden")
        seen = _finish(folder, options, sandbox, judge, reporter)
        return seen.beside(_finish(unseen, options, sandbox, judge, reporter)) if pictured else seen


def prepare(
    model: str,
    out: Path,
    benchmarks: Sequence[str] | str,
    options: EvalOptions,
    reporter: Reporter,
    sizes: Mapping[str, int] | None = None,
) -> tuple[EvalJob, dict[str, Loaded], Sandbox | None]:
    """Plan the evaluation of a checkpoint and load its problems; whatever cannot work is refused here.

    `sizes`: problems of a benchmark where the options name no subset; all by default.
    """
    sources = forms_of(options, parse_benchmarks(benchmarks, own_rows=True), training_of(model, options) is not None)
    custom = [name for name in sources if name not in BENCHMARKS]
    if options.data_set and not custom:
        raise UserError(f"data_set={options.data_set[0]} is for rows of your own, NAME=FILE: leave it out")
    if options.relation is not None and not custom:
        raise UserError(f"relation={options.relation} is for rows of your own, NAME=FILE: leave it out")
    job = EvalJob.plan(model, out, sources, options)
    job.check()
    loaded = {}
    for name, source in sources.items():
        size = subset.parse(options.subset, (sizes or {}).get(name))
        if name in custom:
            loaded[name] = _own_rows(name, str(source), size, options, training_of(model, options), reporter)
            continue
        loaded[name] = subset.load(BENCHMARKS[name], source, size, options.subset_seed, options.limit)
    sandbox = open_sandbox(options, [item for part in loaded.values() for item in part.items], reporter)
    if not is_evaluation(job.out):
        job.check_adapter()  # a finished evaluation needs no model any more
    return job, loaded, sandbox


@naming_extras()
def grade_file(
    responses: str | Path,
    options: GradeOptions | None = None,
    *,
    reporter: Reporter = SILENT,
    **changes: Any,
) -> Evaluation:
    """Grade a file of responses, or an evaluation folder again.

    Args:
        responses: a .jsonl, .json, .csv, .tsv, .xlsx or .parquet file, or a folder of `evaluate` or `grade_file`.
        options: how it is done; `changes` override its fields.
        reporter: where progress goes; nowhere by default.

    Raises:
        UserError: a file without responses or known answers, or a folder that is unfinished.
    """
    options = GradeOptions.build(options, changes)
    judge = open_judge(options)
    path = Path(responses)
    answers = replace(answer_form(options), corners=options.corners)
    if path.is_dir():
        if options.out or options.benchmark:
            raise UserError(
                f"{path} is an evaluation, which knows its problems and is graded where it is: leave `out` and "
                "`benchmark` out, or grade a copy of the folder"
            )
        if answers != MATHEMATICS:
            raise UserError(
                f"{path} is an evaluation, which knows how its answers are compared and written: leave `relation`, "
                "`threshold`, `coordinates` and `corners` out"
            )
        with EvalFolder(path) as folder:
            require_finished(folder)
            options = with_judge_end(options, folder.manifest.get("protocol"))
            sandbox = open_sandbox(options, folder.items(), reporter)
            manifest = folder.manifest
            amended = manifest | {"mcq_policy": options.mcq_policy or manifest.get("mcq_policy", DEFAULT_POLICY)}
            if options.reading is not None:
                amended["reading"] = options.reading
            if options.aggregation:
                amended["aggregations"] = aggregations_of(options.aggregation, manifest["samples_by_benchmark"])
            if amended != manifest:
                folder.write("manifest.json", json.dumps(amended, indent=1, ensure_ascii=True) + "\n")
            return _finish(folder, options, sandbox, judge, reporter)
    read = read_answers(path, options.benchmark, answers=answers)
    name = read.name
    for note in [f"{path}: {note}" for note in read.notes] + (unjudged([name]) if judge is None else []):
        reporter.note(note)
    samples = {name: read.file.samples}
    manifest = {
        "responses": path.name,
        "mcq_policy": options.mcq_policy or DEFAULT_POLICY,
        "samples_by_benchmark": samples,
        "aggregations": aggregations_of(options.aggregation, samples),
        "versions": _versions(),
    } | ({"reading": options.reading} if options.reading else {})
    if name in BENCHMARKS.imported:
        manifest["benchmarks"] = {name: {"import": BENCHMARKS.imported[name]}}
    sandbox = open_sandbox(options, read.items, reporter)
    with EvalFolder(options.out or path.with_suffix(".graded"), manifest) as folder:
        provenance.begin(folder.path)
        folder.renew_items(read.items)
        folder.replace_rows(
            "responses.jsonl", (response.as_row() for response in read.responses()), stale=steps.GRADINGS
        )
        folder.replace_rows(VLMEVALKIT, read.as_vlmevalkit())
        del read  # what follows reads the folder
        return _finish(folder, options, sandbox, judge, reporter)


def sum_up_again(path: str | Path) -> Evaluation:
    """Make tables and page of a finished evaluation again, from its files."""
    with EvalFolder(Path(path)) as folder:
        require_finished(folder)
        return steps.sum_up(folder)


@dataclass(frozen=True)
class EvalJob:
    """One checkpoint to be asked some benchmarks."""

    model: str
    out: Path
    generation: Mapping[str, Generation]
    """How each benchmark is asked."""
    aggregations: Mapping[str, str]
    """How the samples of each benchmark become one score."""
    mcq_policy: McqPolicy
    adapter: str | None
    device: str
    protocol: str | None = None
    departures: tuple[str, ...] = ()
    """Where options depart from the protocol, each with both values."""
    reading: GradedReading | None = None
    """What answers are read from, where it is not tags and boxes alone."""

    @classmethod
    def plan(cls, model: str, out: Path, benchmarks: Iterable[str], options: EvalOptions) -> Self:
        """Settle every setting.

        Raises:
            UserError: several samples at temperature 0, or an aggregation that needs more samples.
        """
        generation = {}
        departures: dict[str, None] = {}
        trained = training_of(model, options)
        for name in benchmarks:
            each, departing = under_protocol(options, name, trained is not None)
            departures |= dict.fromkeys(departing)
            style, usual, greedy = _usual(name)
            if name in HELD_OUT and trained is not None and each.style is None:
                each = each.model_copy(update={"style": "as-trained"})
            most = custom_data.HELD_OUT_TOKENS if name in HELD_OUT else 16384
            samples = usual if each.samples is None else each.samples
            temperature = each.temperature
            if temperature is None:
                temperature = greedy if samples == 1 else 0.6
            generation[name] = generation_for(
                model,
                each,
                style,
                trained,
                samples=samples,
                temperature=temperature,
                top_p=1.0 if each.top_p is None else each.top_p,
                max_new_tokens=most if each.max_new_tokens is None else each.max_new_tokens,
                seed=options.seed,
            )
            if options.protocol == "paper-vlm" and (images := generation[name].vision):
                departures[f"images with {settings_text(images)} instead of a long side of 1,024 and one tile"] = None
            if samples > 1 and temperature == 0:
                raise UserError(f"{name} asks for {samples} samples, all alike at temperature 0: raise `temperature`")
        aggregations = aggregations_of(options.aggregation, {name: how.samples for name, how in generation.items()})
        policy, reading = options.mcq_policy or DEFAULT_POLICY, options.reading
        adapter = options.adapter or adapter_trained_with(options.like or model)
        device, left = device_of(options.device), tuple(departures)
        return cls(model, out, generation, aggregations, policy, adapter, device, options.protocol, left, reading)

    def opening(
        self, loaded: Mapping[str, Loaded], options: EvalOptions, judge: JudgeSettings | VllmJudge | None
    ) -> list[str]:
        """Describe the data, what is asked, and how it is sampled and graded, in a few lines."""
        lines = [f"{name}: {note}" for name, copy in loaded.items() for note in copy.notes]
        lines += [
            f"asked as {names}: {how}"
            for names, how in grouped([(title(name), sentence(how.as_row())) for name, how in self.generation.items()])
        ]
        graded = f"graded by rules, multiple choice by {self.mcq_policy}"
        graded += f", reading {self.reading}; judge: " if self.reading else "; judge: "
        graded += "none" if judge is None else judge.name
        if judge is not None and options.judge_format:
            graded += f", asked as {options.judge_format}"
        lines.append(graded + (f", which reads the last {options.judge_end:,} characters" if options.judge_end else ""))
        lines += unjudged(self.generation) if judge is None else []
        if self.protocol is not None:
            lines.append(f"protocol {self.protocol}: " + ("; ".join(self.departures) or "nothing departs from it"))
        forms = [(name, BENCHMARKS[name].form_of) for name in self.generation if name in BENCHMARKS]
        if named := ", ".join(f"{title(origin)} as {name}" for name, origin in forms if origin):
            lines.append(f"forms: {named}")
        trained = trained_with(self.model)
        styles = {how.style for how in self.generation.values()} - {OWN_PROMPT}
        if trained is not None and styles and trained.prompt.style not in styles:
            lines.append(
                f"trained with the {trained.prompt.style} prompt: style=as-trained asks with it, instead of the "
                "benchmark's"
            )
        return lines

    def blind(self, names: Iterable[str]) -> EvalJob:
        """Return the job that asks some of its benchmarks the same with every picture hidden."""
        generation = {name: replace(self.generation[name], blind=True) for name in names}
        aggregations = {name: self.aggregations[name] for name in generation}
        return replace(self, out=self.out / "blind", generation=generation, aggregations=aggregations)

    def check(self) -> None:
        """Refuse what needs neither data nor a model to be seen: settings, folder, device, the checkpoint's name."""
        import torch

        from mmcorl.apps.demos import zoo

        refuse_early(self.out, self._settings())
        built_on_demand = zoo.parse(self.model)  # refuses a name that the zoo does not have
        if is_evaluation(self.out):
            return
        if built_on_demand is None:
            self.check_adapter()
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:  # the latter where torch was built without CUDA
            reason = str(error).splitlines()[0].rstrip(".")
            raise UserError(f"device {self.device!r} cannot be used ({reason}): give cpu or cuda:N") from error

    def check_adapter(self) -> None:
        """Refuse a checkpoint that has no adapter, or no room for a response, before anything is written."""
        from mmcorl.apps.demos.zoo import resolve
        from model_adapters.registry import adapter_for, context_of

        path = resolve(self.model)
        adapter_for(path, self.adapter)
        context = context_of(path)
        for name, how in self.generation.items():
            if context is not None and how.max_new_tokens >= context:
                raise UserError(
                    f"max_new_tokens is {how.max_new_tokens} for {name}, and {self.model} has a context of {context} "
                    f"tokens for prompt and response: give max_new_tokens=N, below {context} by the longest prompt"
                )

    def manifest(self, loaded: Mapping[str, Loaded]) -> dict[str, Any]:
        """Return what the evaluation is about, as its folder records it."""
        benchmarks = {
            name: {"revision": copy.revision, "schema": copy.schema_hash, "rows": copy.rows, "notes": copy.notes}
            | ({"import": BENCHMARKS.imported[name]} if name in BENCHMARKS.imported else {})
            for name, copy in loaded.items()
        }
        return {"benchmarks": benchmarks, **self._settings(), "versions": _versions()}

    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint, loaded when it is first asked."""
        from eval_suite.evaluation.checkpoint import Checkpoint

        return Checkpoint(self.model, self.adapter, self.device)

    def answer(
        self,
        folder: EvalFolder,
        loaded: Mapping[str, Loaded],
        checkpoint: Checkpoint | SixthCalls,
        reporter: Reporter,
        doing: str = "answering",
    ) -> None:
        """Check every prompt, then ask the checkpoint what is not answered yet."""
        askable = {}
        for name, copy in loaded.items():
            folder.keep_items(copy.items)
            check = partial(checkpoint.check, self.generation[name])
            askable[name] = steps.askable(folder, copy.items, check, reporter=reporter)
        for name, items in askable.items():
            steps.generate(folder, items, self.generation[name], checkpoint.chunk, doing=doing, reporter=reporter)

    def _settings(self) -> dict[str, Any]:
        """Return the part of the manifest that is known before the data are read."""
        set_only = {"protocol": self.protocol, "departures": list(self.departures), "reading": self.reading}
        return {
            "model": self.model,
            "generation": {name: how.as_row() for name, how in self.generation.items()},
            "mcq_policy": self.mcq_policy,
            "samples_by_benchmark": {name: how.samples for name, how in self.generation.items()},
            "aggregations": dict(self.aggregations),
        } | {name: value for name, value in set_only.items() if value}


def device_of(name: str) -> str:
    """Return the device that `auto` means here; any other as it is."""
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _usual(name: str) -> tuple[PromptStyle, int, float]:
    """Style, responses per problem and temperature of one response of a benchmark, or of rows of one's own."""
    if name not in BENCHMARKS:
        return "plain" if name in HELD_OUT else "boxed", 1, 0.0
    benchmark = BENCHMARKS[name]
    return benchmark.prompt_style, benchmark.samples, benchmark.temperature


def _own_rows(
    name: str, source: str, size: int | None, options: EvalOptions, trained: TrainedWith | None, reporter: Reporter
) -> Loaded:
    config = options.relation is None and source.endswith((".yaml", ".yml"))
    if config or options.relation is not None or trained is None or trained.relation is None:
        trained = None
    else:
        options = _compared_as(trained, options)
    answers = answers_of(source) if config else answer_form(options)
    try:
        rows, notes = open_rows(source, (*held_out(name), *options.data_set), answers)
        loaded = load_rows(rows, name, reporter, answers, size=size, seed=options.subset_seed, limit=options.limit)
        require_answers(loaded.items, name)
    except UserError as error:
        if trained is None:
            raise
        raise UserError(
            f"{error} (answers are compared by {trained.relation}, as the checkpoint was trained: `relation` says "
            "otherwise)"
        ) from error
    if trained is not None:
        notes.append(f"answers compared {how_compared(loaded.items[0])}, as trained (`relation` says otherwise)")
    origin = custom_data.origin_of(name, source, loaded.rows, options.data_set)
    return replace(loaded, notes=(origin, *notes, *loaded.notes))


def _compared_as(trained: TrainedWith, options: EvalOptions) -> EvalOptions:
    """Return the options, with relation and threshold of a training run."""
    assert trained.relation is not None
    if ":" in trained.relation:  # code of this machine, which a checkpoint may not name
        raise UserError(
            f"the checkpoint was trained with answers.relation {trained.relation}, code of your own: name it with "
            f"relation={trained.relation}, or another relation such as math"
        )
    threshold = trained.threshold if options.threshold is None else options.threshold
    return options.model_copy(update={"relation": trained.relation, "threshold": threshold})


def open_judge(options: JudgeOptions) -> JudgeSettings | VllmJudge | None:
    """Return the judge that the options name, if any; refused before work starts if it cannot work."""
    from mmcorl.grading.judge import JudgeSettings, choose
    from mmcorl.llm_client import with_options

    named = options.judge, options.judge_model, options.judge_key_env, options.judge_gpus, options.judge_format
    judge = choose(*named)
    if judge is None and isinstance(options, GradingOptions) and options.judge_again:
        raise UserError(f"judge_again={options.judge_again} needs a judge to ask: add `judge`")
    if options.judge_end < 0:
        raise UserError(f"judge_end={options.judge_end} is no number of characters: give 0 or more")
    if judge is None and options.judge_end:
        raise UserError(f"judge_end={options.judge_end} needs a judge to read it: add `judge`")
    if isinstance(judge, JudgeSettings):
        judge = with_options(judge, options.judge_set)
        judge.api_key()
    elif options.judge_set:
        raise UserError(f"judge_set={options.judge_set[0]} is for a judge at an endpoint: add judge=URL")
    if judge is not None:
        judge.format.shows(options.judge_end)
    return judge


def open_sandbox(options: CodeOptions, items: Iterable[Item], reporter: Reporter) -> Sandbox | None:
    """Return the sandbox if there is code to run; refused unless running code was allowed."""
    if not any(item.kind == "code" for item in items):
        return None
    from mmcorl.sandbox import process

    sandbox = process.open_sandbox(run_code=options.run_code)
    reporter.note(sandbox.describe())
    return sandbox


def _finish(
    folder: EvalFolder,
    options: GradingOptions,
    sandbox: Sandbox | None,
    judge: JudgeSettings | VllmJudge | None,
    reporter: Reporter,
) -> Evaluation:
    steps.grade(folder, folder.manifest["mcq_policy"], sandbox, reporter=reporter)
    if sandbox is not None:
        voting = {name for name, how in folder.manifest.get("aggregations", {}).items() if how.startswith("maj@")}
        steps.observe(folder, sandbox, benchmarks=voting, reporter=reporter)
    silence = ""
    if judge is not None:
        silence = steps.judge(folder, judge, again=options.judge_again, end=options.judge_end, reporter=reporter)
    evaluation = steps.sum_up(folder)
    for name, scores in evaluation.scores.items():
        if (sentence := steps.mostly_without_answer(title(name), scores)) is not None:
            reporter.warn(sentence)
    if silence:
        raise RunError(silence)
    return evaluation


def _versions() -> dict[str, str]:
    from importlib.metadata import distributions, version

    # Files of responses are graded without the packages that sample them.
    there = (name for name in ("mmcorl", "torch", "transformers", "math-verify") if any(distributions(name=name)))
    return {name: version(name) for name in there}
