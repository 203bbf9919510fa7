"""Responses of several models to the same problems, for comparing their errors: sampled, or read from files.

A source is a checkpoint to sample, an evaluation folder, or a file of responses. All are graded by one grader, and
their problems are joined by id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

from eval_suite.answer_form import AnswerForm, answer_form, answers_of
from eval_suite.benchmarks import subset
from eval_suite.benchmarks.custom_data import load_rows, open_rows, require_answers
from eval_suite.benchmarks.tasks import BENCHMARKS, Loaded, parse_benchmarks
from eval_suite.comparisons.join_sources import GatheredResponses, GradedSource, Source, join_sources, repeated
from eval_suite.evaluation import steps
from eval_suite.evaluation.generation import generation_for, training_of
from eval_suite.evaluation.pipeline import EvalJob, device_of
from eval_suite.evaluation.protocols import aggregations_of
from eval_suite.metrics.prompt_protocol import asked_of
from eval_suite.options import DEFAULT_POLICY, DiversityOptions
from eval_suite.reporter import Reporter, counted
from eval_suite.responses.match_rows import read_answers
from eval_suite.results.finished import is_evaluation, require_finished, unfinished
from eval_suite.results.folder import EvalFolder
from mmcorl.algo.seeds import noise_seed
from mmcorl.apps.analysis.trained_with import adapter_trained_with
from mmcorl.apps.demos import zoo
from mmcorl.engines.settings import ENGINES
from mmcorl.errors import RunError, UserError
from mmcorl.grading import GRADER, Grader
from mmcorl.grading.items import item_key
from mmcorl.system.cache import made_name

_SEED = re.compile(r"@seed(\d+)\Z")


def gather(
    texts: Sequence[str | Path], options: DiversityOptions, *, labels: bool, reporter: Reporter
) -> GatheredResponses:
    """Sample or read every source, `[NAME=]SOURCE[@seedN]`, and join their problems; `labels` needs known answers.

    Raises UserError for sources that cannot be compared.
    """
    sources = [parse_source(text) for text in texts]
    _check_sources(sources, options)
    families = _families(options.family, sources)
    answers = _answer_form(sources, options)
    sheets = _sampled([source for source in sources if source.kind == "checkpoint"], options, answers, labels, reporter)
    for source in sources:
        if source.kind == "evaluation":
            sheets[source] = _read_evaluation(source)
        elif source.kind == "file":
            sheets[source] = _read_file(source, options, answers, labels, reporter)
    return join_sources([sheets[source] for source in sources], families, shared=options.shared, labels=labels)


def parse_source(text: str | Path) -> Source:
    """`[NAME=]SOURCE[@seedN]`, of which NAME may also carry the seed."""
    text = str(text)
    name, equals, where = text.partition("=")
    if Path(text).exists() or not equals:
        name, equals, where = "", "", text
    match = (_SEED.search(where) if not Path(where).exists() else None) or _SEED.search(name)
    seed = int(match[1]) if match else None
    name = _SEED.sub("", name)
    where = where if Path(where).exists() else _SEED.sub("", where)
    if equals and not name:
        raise UserError(f"{text!r} has nothing before the `=`: write NAME=SOURCE, or the source alone")
    path = Path(where)
    kind: Literal["checkpoint", "evaluation", "file"] = "checkpoint"
    if path.is_file():
        kind = "file"
    elif is_evaluation(path):
        kind = "evaluation"
    elif path.suffix in (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".xlsx"):
        raise UserError(f"there is no file {where!r}: give a file of responses, an evaluation folder or a checkpoint")
    label = name or (path.stem if kind == "file" else path.resolve().name if path.exists() else where.split("/")[-1])
    return Source(made_name(label) or label, where, kind, seed)


def _check_sources(sources: Sequence[Source], options: DiversityOptions) -> None:
    """Refuse, before anything is read or loaded, sources and options that do not fit."""
    seen: dict[tuple[str, int | None], Source] = {}
    for source in sources:
        twin = seen.setdefault((source.label, source.seed), source)
        if twin is not source:
            raise UserError(
                f"two sources are called {source.label!r}: name them apart (a={source.where}), or, where they are two "
                f"draws of one model, by their seeds ({source.label}@seed1={twin.where})"
            )
    sampled = [source for source in sources if source.kind == "checkpoint"]
    places: dict[str, Source] = {}
    for source in sampled:
        other = places.setdefault(source.label, source)
        if other.where != source.where:
            raise UserError(
                f"{other.where!r} and {source.where!r} are both called {source.label!r}, which says that they are one "
                f"model: name them apart, as in a={source.where}"
            )
        zoo.parse(source.where)  # refuses a name that the zoo does not have
    repeat = options.repeat if sampled else 1
    if len(sources) == len(sampled) == 1 and repeat < 2:
        raise UserError(f"{sources[0].label} is one draw, and a pair takes two: name another model, or add repeat=2")
    if sampled and bool(options.data) == bool(options.benchmark):
        raise UserError(f"{sampled[0].where!r} is to be sampled, but on what: give `data` or `benchmark`, one of them")
    if sampled and options.out is None:
        raise UserError(f"the responses of {sampled[0].where!r} need a place to stay: give a folder with `out`")
    if options.repeat < 1 or options.problems < 1:
        raise UserError(f"repeat={options.repeat} and problems={options.problems} must each be at least 1")
    again = repeat > 1 or any(source.seed is not None for source in sampled)
    if sampled and again and options.temperature == 0:
        raise UserError("at temperature 0 a second draw is the first again: raise `temperature`, or leave `repeat` out")


def _answer_form(sources: Sequence[Source], options: DiversityOptions) -> AnswerForm:
    """Return the form of answers to rows of one's own; refuse one where no source has such rows."""
    answers = answer_form(options)
    sampled = any(source.kind == "checkpoint" for source in sources)
    files = any(source.kind == "file" for source in sources)
    if answers.relation is not None and not ((sampled and options.data) or (files and not options.benchmark)):
        raise UserError(
            f"relation={answers.relation} is for rows of your own, and evaluations and benchmarks know how their "
            "answers are compared: leave it out"
        )
    if answers.relation is None and sampled and str(options.data).endswith((".yaml", ".yml")):
        return replace(answers_of(str(options.data)), coordinates=answers.coordinates)
    return answers


def _families(texts: Sequence[str], sources: Sequence[Source]) -> dict[str, str]:
    known = {source.label for source in sources}
    families = {}
    for text in texts:
        name, equals, family = text.partition("=")
        if not (equals and name and family):
            raise UserError(f"family={text} is not of the form NAME=FAMILY, such as {next(iter(known))}=qwen")
        if name not in known:
            raise UserError(
                f"`family` names {name!r}, but the sources are {', '.join(sorted(known))}: use one of these"
            )
        families[name] = family
    return families


# --- checkpoints ----------------------------------------------------------------------------------------------


def _sampled(
    sources: Sequence[Source], options: DiversityOptions, answers: AnswerForm, labels: bool, reporter: Reporter
) -> dict[Source, GradedSource]:
    """Sample checkpoints, each into its own evaluation folder; finished ones are only read."""
    if not sources:
        return {}
    name, loaded = problems_of(options, answers, labels, reporter)
    for note in loaded.notes:
        reporter.note(f"{name}: {note}")
    jobs = {source: _job(source, name, options) for source in sources}
    for source, job in jobs.items():
        job.check()
        reporter.note(f"{source.label}: {job.out}")
    sheets = {}
    for source, job in jobs.items():
        work = (job, loaded, source.label, labels, reporter)
        finished = is_evaluation(job.out) and unfinished(EvalFolder(job.out)) is None
        if ENGINES.find(options.engine).own_weights and not finished:
            # An engine keeps its share of the GPU until its process ends, and the next one needs it.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                try:
                    process.submit(_answer, *work).result()
                except BrokenProcessPool as error:
                    raise RunError(
                        f"the process that samples {source.label} died, for want of memory as a rule; what it answered "
                        "is kept: give the same command again, or lower `max_new_tokens`"
                    ) from error
        else:
            _answer(*work)
        sheets[source] = _read_evaluation(source, job.out)
        sheets[source].notes += loaded.notes
    return sheets


def _answer(job: EvalJob, loaded: Loaded, label: str, labels: bool, reporter: Reporter) -> None:
    """Answer, grade and, with known answers, sum up: the evaluation of one checkpoint."""
    (name,) = job.generation
    with EvalFolder(job.out, job.manifest({name: loaded})) as folder:
        with job.checkpoint() as checkpoint:
            job.answer(folder, {name: loaded}, checkpoint, reporter, f"{label} answers")
        steps.grade(folder, job.mcq_policy, what=label, reporter=reporter)
        if labels:
            steps.sum_up(folder, label)


def _job(source: Source, name: str, options: DiversityOptions) -> EvalJob:
    """Return the evaluation of one checkpoint on the problems called `name`."""
    seed = options.seed if source.seed is None else source.seed
    trained = training_of(source.where, options)
    settings = generation_for(
        source.where,
        options,
        "boxed",
        trained,
        samples=options.repeat,
        temperature=options.temperature,
        top_p=options.top_p,
        max_new_tokens=options.max_new_tokens,
        # Models that share a vocabulary would draw from one stream of noise, and err together for that alone.
        seed=noise_seed(seed, source.where, 0, 0) % 2**31,
    )
    slug = re.sub(r"[^\w.-]+", "-", source.label) + ("" if source.seed is None else f"-seed{source.seed}")
    assert options.out is not None  # _check_sources
    out = options.out / "samples" / slug
    aggregations = aggregations_of(None, {name: options.repeat})
    adapter = options.adapter or adapter_trained_with(options.like or source.where)
    return EvalJob(
        source.where, out, {name: settings}, aggregations, DEFAULT_POLICY, adapter, device_of(options.device)
    )


def problems_of(options: DiversityOptions, answers: AnswerForm, labels: bool, reporter: Reporter) -> tuple[str, Loaded]:
    """Load the problems to ask, drawn by a seed: a benchmark's, or the rows of any source that a config may name."""
    if options.benchmark:
        ((name, where),) = parse_benchmarks(options.benchmark).items()
        loaded = subset.load(BENCHMARKS[name], where, options.problems, options.problems_seed)
        if any(item.kind == "code" for item in loaded.items):
            raise UserError(f"{name} asks for programs, of which no two are the same wrong answer: take another one")
        return name, loaded
    assert options.data is not None  # _check_sources
    rows, notes = open_rows(options.data, options.data_set, answers)
    loaded = load_rows(rows, rows.name, reporter, answers, size=options.problems, seed=options.problems_seed)
    if labels:
        require_answers(loaded.items, rows.name, ", or compare without any by `mmcorl pair --label-free`")
    return rows.name, replace(loaded, notes=(*notes, *loaded.notes))


# --- what was answered before -----------------------------------------------------------------------------------


def _read_evaluation(source: Source, path: Path | None = None) -> GradedSource:
    folder = EvalFolder(path or Path(source.where))
    require_finished(folder)
    items = [item for item in folder.items() if item.kind != "code"]
    left_out = len(folder.items()) - len(items)
    # Pictures are not kept in full, so questions about them cannot be told apart.
    pictured = {item_key(row) for row in folder.lines("items.jsonl") if row["images"]}
    if not items:
        raise UserError(
            f"{source.where!r} holds programs only, of which no two are the same wrong answer: give another"
        )
    names = list(dict.fromkeys(item.benchmark for item in items))
    several = len(names) > 1
    key = {item.key: f"{item.benchmark}/{item.id}" if several else item.id for item in items}
    generation = folder.manifest.get("generation", {})
    how = next((asked_of(folder.manifest, name) for name in names if name in generation), None) or {}
    outcomes = [outcome for outcome in folder.outcomes() if (outcome.benchmark, outcome.id) in key]
    return GradedSource(
        source,
        {key[item.benchmark, item.id]: item for item in items},
        {(key[o.benchmark, o.id], o.sample): (o.vote, o.correct) for o in outcomes},
        1 + min(max(o.sample for o in outcomes if o.benchmark == name) for name in names),
        folder.document("rule.json") or {},
        folder.document("judge.json"),
        how,
        folder.manifest.get("model"),
        ([f"{source.label}: {counted(left_out, 'program is', 'programs are')} left out"] if left_out else [])
        + repeated(item for item in items if item.key not in pictured),
    )


def _read_file(
    source: Source, options: DiversityOptions, answers_are: AnswerForm, labels: bool, reporter: Reporter
) -> GradedSource:
    form = answers_are if not options.benchmark else AnswerForm(coordinates=options.coordinates)
    given = read_answers(Path(source.where), options.benchmark, golds=labels, own_name=True, answers=form)
    known = {item.id: item for item in given.items}
    answers: dict[tuple[str, int], tuple[str | None, bool]] = {}
    with Grader() as grader, reporter.task(f"grading {source.label}", given.file.count) as bar:
        for response in given.responses():
            result = grader.rule(known[response.id], response)
            answers[response.id, response.sample] = (result.answer, result.rule)
            bar.advance()
    notes = [f"{source.label}: {note}" for note in given.notes] + repeated(given.items)
    facts = {"name": GRADER[0], "version": GRADER[1], "mcq_policy": DEFAULT_POLICY}
    return GradedSource(source, known, answers, given.file.samples, facts, notes=notes)
