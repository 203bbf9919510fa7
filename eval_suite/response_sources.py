"""One response of several models to the same problems, for comparing their errors: sampled, or read from files.

A source is a checkpoint to be sampled, an evaluation folder, or a file of responses. Whatever it is, it ends as items
and outcomes, graded by one grader, and the problems of all sources are joined by id.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import ValidationError

from eval_suite import commands, pipeline, subset
from eval_suite.counting import counted
from eval_suite.evaluations import is_evaluation, unfinished
from eval_suite.folder import EvalFolder
from eval_suite.grading import GRADER, Grader
from eval_suite.imports import Imported, as_items, as_responses, read_responses
from eval_suite.items import Item
from eval_suite.joining import join
from eval_suite.metrics.paired import facts_difference
from eval_suite.tasks import BENCHMARKS, Loaded
from mmcorl.algo.seeds import noise_seed
from mmcorl.analysis.diversity import Draw
from mmcorl.answers import Equivalence
from mmcorl.errors import RunError, UserError
from mmcorl.labels.voting import Choices
from mmcorl.run.progress import task
from mmcorl.tools import zoo

if TYPE_CHECKING:
    from eval_suite.generate import Generation

PROBLEMS = 500
"""Problems that are asked, as in the paper."""
TEMPERATURE = 0.8
MAX_NEW_TOKENS = 3072
"""The paper's budget of a response to a text problem."""
ALIKE = 0.9
"""Share of known answers that must agree between sources: files spell some of them in ways of their own."""
_SEED = re.compile(r"@seed(\d+)\Z")


@dataclass(frozen=True)
class Source:
    """Where the responses of one model are, or what can be sampled."""

    label: str
    """The model's name in tables; sources with one label are draws of one model."""
    where: str
    """A path, a hub id or `zoo:NAME`."""
    kind: Literal["checkpoint", "evaluation", "file"]
    seed: int | None = None
    """The sampling seed, where the source names one."""


@dataclass
class Sheet:
    """The problems of one source and what came of every response to them."""

    source: Source
    items: Mapping[str, Item]
    """By problem."""
    answers: Mapping[tuple[str, int], tuple[str | None, bool]]
    """By problem and sample: the answer as far as it may vote, and whether it is right."""
    samples: int
    grader: Mapping[str, Any]
    judge: Mapping[str, Any] | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    """How the responses were made, as far as that is known."""
    model: str | None = None
    """The checkpoint, as far as that is known."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Gathered:
    """Everything that diversity and pairing are computed from."""

    draws: tuple[Draw, ...]
    choices: Mapping[str, Choices]
    """Options of each problem."""
    labelled: bool
    facts: tuple[tuple[str, str], ...]
    """What produced the numbers."""
    notes: tuple[str, ...]
    """What a reader of the numbers should know."""


def gather(arguments: argparse.Namespace, *, labels: bool) -> Gathered:
    """Sample or read every source of a command line and join them.

    `labels`: whether known answers are needed. Raises UserError for sources that cannot be compared.
    """
    sources = [parse_source(text) for text in arguments.sources]
    _check_sources(sources, arguments)
    families = _families(arguments.family, sources)
    sheets = _sampled([one for one in sources if one.kind == "checkpoint"], arguments, labels)
    for source in sources:
        if source.kind == "evaluation":
            sheets[source] = _read_evaluation(source)
        elif source.kind == "file":
            sheets[source] = _read_file(source, arguments, labels)
    return _joined([sheets[source] for source in sources], families, shared=arguments.shared, labels=labels)


def parse_source(text: str) -> Source:
    """`[NAME=]SOURCE[@seedN]`, of which NAME may also carry the seed."""
    name, equals, where = text.partition("=")
    if Path(text).exists() or not equals:
        name, equals, where = "", "", text
    found = _SEED.search(where) if not Path(where).exists() else None
    found = found or _SEED.search(name)
    seed = int(found[1]) if found else None
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
    return Source(label.removeprefix("zoo:"), where, kind, seed)


def _check_sources(sources: Sequence[Source], arguments: argparse.Namespace) -> None:
    """Refuse, before anything is read or loaded, what cannot be meant."""
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
    repeat = arguments.repeat if sampled else 1
    if len(sources) == len(sampled) == 1 and repeat < 2:
        raise UserError(f"{sources[0].label} is one draw, and a pair takes two: name another model, or add --repeat 2")
    if sampled and bool(arguments.data) == bool(arguments.benchmark):
        raise UserError(
            f"{sampled[0].where!r} is to be sampled, but on what: give --data SOURCE or --benchmark NAME, one of them"
        )
    if sampled and arguments.out is None:
        raise UserError(f"the responses of {sampled[0].where!r} need a place to stay: give a folder with --out")
    if arguments.repeat < 1 or arguments.problems < 1:
        raise UserError(f"--repeat {arguments.repeat} and --problems {arguments.problems} must each be at least 1")
    again = repeat > 1 or any(source.seed is not None for source in sampled)
    if sampled and again and arguments.temperature == 0:
        raise UserError("at temperature 0 a second draw is the first again: raise --temperature, or leave --repeat out")


def _families(told: Sequence[str], sources: Sequence[Source]) -> dict[str, str]:
    known = {source.label for source in sources}
    families = {}
    for text in told:
        name, equals, family = text.partition("=")
        if not (equals and name and family):
            raise UserError(f"--family {text} is not of the form NAME=FAMILY, such as {next(iter(known))}=qwen")
        if name not in known:
            raise UserError(
                f"--family names {name!r}, but the sources are {', '.join(sorted(known))}: use one of these"
            )
        families[name] = family
    return families


# --- checkpoints ----------------------------------------------------------------------------------------------


def _sampled(sources: Sequence[Source], arguments: argparse.Namespace, labels: bool) -> dict[Source, Sheet]:
    """Sample checkpoints, each into an evaluation folder of its own; what is there already is not done again."""
    if not sources:
        return {}
    name, loaded = problems_of(arguments, labels)
    for note in loaded.notes:
        arguments.say(f"{name}: {note}")
    asked = {source: _asked(source, name, arguments) for source in sources}
    for source, (own, settings) in asked.items():
        commands.check_early(own, own.out, {name: settings})
        arguments.say(f"{source.label}: {own.out}")
    sheets = {}
    for source, (own, settings) in asked.items():
        job = (own, settings, name, loaded, source.label, labels)
        done = is_evaluation(own.out) and unfinished(EvalFolder(own.out)) is None
        if arguments.engine == "vllm" and not done:
            # An engine keeps its share of the GPU until its process ends, and the next one needs it.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                try:
                    process.submit(_answer, *job).result()
                except BrokenProcessPool as error:
                    raise RunError(
                        f"the process that samples {source.label} died, for want of memory as a rule; what it answered "
                        "is kept: give the same command again, or lower --max-new-tokens"
                    ) from error
        else:
            _answer(*job)
        sheets[source] = _read_evaluation(source, own.out)
        sheets[source].notes += loaded.notes
    return sheets


def _answer(own: argparse.Namespace, settings: Generation, name: str, loaded: Loaded, label: str, labels: bool) -> None:
    """Answer, grade and, with known answers, sum up: the evaluation of one checkpoint."""
    manifest = commands.manifest_of(own, {name: loaded}, {name: settings})
    with EvalFolder(own.out, manifest) as folder, commands.Checkpoint(own) as model:
        folder.keep_items(loaded.items)
        askable = pipeline.askable(folder, loaded.items, partial(model.check, settings), quiet=own.quiet)
        pipeline.generate(
            *(folder, askable, settings.samples, settings.chunk, partial(model.chunk, settings)),
            doing=f"{label} answers",
            quiet=own.quiet,
        )
        model.release()
        pipeline.grade(folder, own.mcq_policy, what=label, quiet=own.quiet)
        if labels:
            pipeline.sum_up(folder, label)


def _asked(source: Source, name: str, arguments: argparse.Namespace) -> tuple[argparse.Namespace, Generation]:
    """The options of one checkpoint, as `mmcorl eval` has them, and how it is asked."""
    from eval_suite.generate import Generation, trained_with

    told = trained_with(source.where)
    seed = arguments.seed if source.seed is None else source.seed
    settings = Generation(
        style=arguments.style or told.get("style") or "boxed",
        system=told.get("system"),
        samples=arguments.repeat,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        max_new_tokens=arguments.max_new_tokens,
        vision=told.get("vision", {}),
        template=told.get("template", {}),
        # Models that share a vocabulary would draw from one stream of noise, and err together for that alone.
        seed=noise_seed(seed, source.where, 0, 0) % 2**31,
        dtype=arguments.dtype,
        engine=arguments.engine,
        chunk=256 if arguments.engine == "vllm" else 32,
    )
    slug = re.sub(r"[^\w.-]+", "-", source.label) + ("" if source.seed is None else f"-seed{source.seed}")
    # Functions cannot be sent to another process.
    own = argparse.Namespace(**{key: value for key, value in vars(arguments).items() if not callable(value)})
    own.model, own.out = source.where, arguments.out / "samples" / slug
    own.mcq_policy, own.aggregation = commands.DEFAULT_POLICY, None
    return own, settings


def problems_of(arguments: argparse.Namespace, labels: bool) -> tuple[str, Loaded]:
    """The problems to ask, drawn by a seed: a benchmark's, or the rows of any source that a config may name."""
    if arguments.benchmark:
        ((name, where),) = commands.sources_of([arguments.benchmark]).items()
        loaded = subset.load(BENCHMARKS[name], where, subset.Subset(arguments.problems, arguments.problems_seed))
        if any(item.kind == "code" for item in loaded.items):
            raise UserError(f"{name} asks for programs, of which no two are the same wrong answer: take another one")
        return name, loaded
    settings = data_settings(arguments.data, arguments.data_set)

    from mmcorl.data.checks import check
    from mmcorl.data.sources import load_prompts
    from model_adapters.base import VisionSettings

    whole = load_prompts(settings)
    name = whole.name
    # Drawn by place, so that nothing but what is asked is read.
    places = subset.draw(
        [Item(name, str(k), "", "") for k in range(len(whole))], arguments.problems, arguments.problems_seed
    )
    prompts = whole.select([int(place.id) for place in places])
    with task(f"reading {name}", len(prompts), quiet=arguments.quiet) as bar:
        found = check(prompts, max_side=VisionSettings().max_side, on_progress=lambda *_: bar.advance())
    items = [_item(name, prompt) for prompt in prompts.select(found.kept)]
    unknown = sum(not item.gold for item in items)
    if labels and unknown:
        raise UserError(
            f"{unknown} of {len(items)} problems of {name} have no known answer: name the column that holds them "
            "(--data-set columns.answer=NAME), or compare without any by `mmcorl pair --label-free`"
        )
    notes = []
    if found.counts:
        notes.append(found.summary())
    if len(prompts) < len(whole):
        notes.append(f"{len(prompts)} of {len(whole)} problems, drawn with seed {arguments.problems_seed}")
    return name, Loaded(tuple(items), None, found.fingerprint, len(whole), tuple(notes))


def data_settings(source: str, changes: Sequence[str]) -> Any:
    """Settings of a data source: what a config file trains on, or the source itself; `changes` are KEY=VALUE.

    Repeated rows are left out and counted, unless the settings say otherwise.
    """
    from mmcorl import config
    from mmcorl.config.errors import sentence
    from mmcorl.data.settings import DataSettings

    if source.endswith((".yaml", ".yml")):
        raw = config.load(source).data.train.model_dump(exclude_unset=True, mode="json")
    else:
        raw = {"source": source}
    raw.setdefault("duplicates", "skip")
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not key:
            raise UserError(f"--data-set {change} is not of the form KEY=VALUE, such as columns.answer=solution")
        *parents, last = key.split(".")
        inner = raw
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise UserError(f"--data-set {change} looks for settings in {parent!r}, which has none")
        inner[last] = yaml.safe_load(value)
    try:
        return DataSettings.model_validate(raw)
    except ValidationError as error:
        raise UserError(sentence(error, raw, DataSettings)) from error


def _item(name: str, prompt: Any) -> Item:
    meta = {} if prompt.tag is None else {"tag": prompt.tag}
    return Item(name, prompt.row_id, prompt.text, prompt.gold or "", prompt.images, prompt.choices, meta=meta)


# --- what was answered before -----------------------------------------------------------------------------------


def _read_evaluation(source: Source, path: Path | None = None) -> Sheet:
    folder = EvalFolder(path or Path(source.where))
    if left := unfinished(folder):
        raise UserError(left)
    items = [item for item in folder.items() if item.kind != "code"]
    left_out = len(folder.items()) - len(items)
    # Pictures are not kept in full, so questions about them cannot be told apart.
    pictured = {(row["benchmark"], row["id"]) for row in folder.rows("items.jsonl") if row["images"]}
    if not items:
        raise UserError(
            f"{source.where!r} holds programs only, of which no two are the same wrong answer: give another"
        )
    names = list(dict.fromkeys(item.benchmark for item in items))
    several = len(names) > 1
    key = {(item.benchmark, item.id): f"{item.benchmark}/{item.id}" if several else item.id for item in items}
    outcomes = [one for one in pipeline.outcomes(folder) if (one.benchmark, one.id) in key]
    manifest = folder.manifest
    return Sheet(
        source,
        {key[item.benchmark, item.id]: item for item in items},
        {(key[one.benchmark, one.id], one.sample): (one.vote, one.correct) for one in outcomes},
        1 + min(max(one.sample for one in outcomes if one.benchmark == name) for name in names),
        folder.facts("rule.json") or {},
        folder.facts("judge.json"),
        _how(manifest.get("generation", {}), names),
        manifest.get("model"),
        ([f"{source.label}: {counted(left_out, 'program is', 'programs are')} left out"] if left_out else [])
        + _repeated(item for item in items if (item.benchmark, item.id) not in pictured),
    )


def _how(generation: Mapping[str, Mapping[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    asked = [generation[name] for name in names if name in generation]
    return {key: asked[0][key] for key in ("temperature", "top_p", "style", "max_new_tokens")} if asked else {}


def _read_file(source: Source, arguments: argparse.Namespace, labels: bool) -> Sheet:
    path = Path(source.where)
    read = read_responses(path, golds=labels and not arguments.benchmark)
    rows, notes, ids = read.rows, [f"{source.label}: {note}" for note in read.notes], None
    if arguments.benchmark:
        ((name, where),) = commands.sources_of([arguments.benchmark]).items()
        whole = BENCHMARKS[name].load(where).items
        ids, how = join(rows, whole, name, source.where)
        asked = set(ids.values())
        items = [item for item in whole if item.id in asked]
        notes.append(f"{source.label}: problems of {name} are found by {how}")
    else:
        name = rows[0].benchmark or path.stem
        items = as_items(rows, name) if labels else _unlabelled(rows, name)
    responses = as_responses(rows, name, ids)
    known = {item.id: item for item in items}
    answers: dict[tuple[str, int], tuple[str | None, bool]] = {}
    with Grader() as grader, task(f"grading {source.label}", len(responses), quiet=arguments.quiet) as bar:
        for response in responses:
            result = grader.rule(known[response.id], response)
            answers[response.id, response.sample] = (result.answer, result.rule)
            bar.advance()
    notes += _repeated(items)
    facts = {"name": GRADER[0], "version": GRADER[1], "mcq_policy": commands.DEFAULT_POLICY}
    return Sheet(source, known, answers, 1 + max(row.sample for row in rows), facts, notes=notes)


def _unlabelled(rows: Sequence[Imported], name: str) -> list[Item]:
    """Items of a file for which no answers are needed."""
    items = {row.id: Item(name, row.id, row.question, row.gold or "", choices=row.choices) for row in rows}
    return list(items.values())


# --- joined -----------------------------------------------------------------------------------------------------


def _joined(sheets: Sequence[Sheet], families: Mapping[str, str], *, shared: bool, labels: bool) -> Gathered:
    notes = list(dict.fromkeys(note for sheet in sheets for note in sheet.notes))
    _check_alike(sheets, notes)
    problems = list(sheets[0].items)
    common = set(problems).intersection(*(sheet.items for sheet in sheets[1:]))
    if shared and any(len(common) < len(sheet.items) for sheet in sheets):
        sizes = ", ".join(f"{sheet.source.label} {len(sheet.items)}" for sheet in sheets)
        if not common:
            raise UserError(f"the sources have no problem in common ({sizes}): give responses to the same problems")
        problems = [problem for problem in problems if problem in common]
        notes.append(f"{len(problems)} problems that all sources answer; they have {sizes}")
        sheets = [replace(sheet, items={problem: sheet.items[problem] for problem in problems}) for sheet in sheets]
    with Equivalence() as relation:
        notes += _check_golds(sheets, relation)
    families = {**_lineages(sheets), **families}
    draws = _draws(sheets, families, labels)
    if len(draws) < 2:
        raise UserError(
            f"{draws[0].name} holds one response to each problem, and a pair takes two: name another source"
        )
    silent = {draw.name: draw.unanswered for draw in draws if draw.unanswered}
    if silent:
        told = ", ".join(f"{name} {count}" for name, count in silent.items())
        notes.append(f"without a readable answer, which agrees with nothing and is wrong: {told}")
    choices = {problem: item.choices for problem, item in sheets[0].items.items()}
    return Gathered(tuple(draws), choices, labels, tuple(_facts(sheets, families)), tuple(notes))


def _draws(sheets: Sequence[Sheet], families: Mapping[str, str], labels: bool) -> list[Draw]:
    draws: list[Draw] = []
    count: Counter[str] = Counter()
    for sheet in sheets:
        label = sheet.source.label
        for sample in range(sheet.samples):
            count[label] += 1
            told = {problem: sheet.answers.get((problem, sample), (None, False)) for problem in sheet.items}
            draws.append(
                Draw(
                    label if count[label] == 1 else f"{label} #{count[label]}",
                    label,
                    {problem: answer for problem, (answer, _) in told.items()},
                    {problem: right for problem, (_, right) in told.items()} if labels else None,
                    families.get(label),
                )
            )
    return draws


def _check_alike(sheets: Sequence[Sheet], notes: list[str]) -> None:
    """Refuse sources graded differently, or about two known benchmarks; note those that were asked differently."""
    first, *others = sheets
    for other in others:
        where = f"{first.source.label} and {other.source.label}"
        for part, a, b in (("grader", first.grader, other.grader), ("judge", first.judge, other.judge)):
            if (difference := facts_difference(a, b)) is not None:
                raise UserError(f"{part} differs between {where} ({difference}): grade both again with the same one")
        told = [{item.benchmark for item in sheet.items.values()} & BENCHMARKS.keys() for sheet in (first, other)]
        if all(told) and told[0] != told[1]:
            names = [", ".join(sorted(one)) for one in told]
            raise UserError(f"{where} are about {names[0]} and {names[1]}: let both answer the same problems")
    for key in ("temperature", "top_p", "style", "max_new_tokens"):
        values = {sheet.source.label: sheet.asked[key] for sheet in sheets if key in sheet.asked}
        if len(set(values.values())) > 1:
            notes.append(f"asked differently: {key} {', '.join(f'{v} for {name}' for name, v in values.items())}")


def _check_golds(sheets: Sequence[Sheet], relation: Equivalence) -> list[str]:
    """Refuse sources whose known answers differ: rows in another order, or other problems with the same ids."""
    notes = []
    first, *others = sheets
    for other in others:
        pairs = [
            (problem, item, other.items[problem])
            for problem, item in first.items.items()
            if problem in other.items and item.gold and other.items[problem].gold
        ]
        differ = [told for told in pairs if not relation.same(told[1].gold, told[2].gold, told[1].choices)]
        if not differ:
            continue
        problem, one, two = differ[0]
        where = f"{first.source.label} and {other.source.label}"
        if len(differ) > (1 - ALIKE) * len(pairs):
            raise UserError(
                f"{where} are not about the same problems: the known answers differ for {len(differ)} of {len(pairs)} "
                f"ids (first {problem!r}: {one.gold!r} and {two.gold!r}); give both the same ids for the same problems"
            )
        notes.append(f"{where} spell {counted(len(differ), 'known answer', 'known answers')} differently")
    return notes


def _repeated(items: Iterable[Item]) -> list[str]:
    """How many problems, with their known answers, stand several times under ids of their own."""
    seen = Counter((item.question, item.choices, item.gold) for item in items if item.question and not item.images)
    extra = sum(count - 1 for count in seen.values())
    return [f"{counted(extra, 'problem repeats', 'problems repeat')} an earlier question under another id"] * bool(
        extra
    )


def _lineages(sheets: Sequence[Sheet]) -> dict[str, str]:
    """The lineage of every model that lies where its config can be read without a network."""
    told = {}
    for sheet in sheets:
        if sheet.model is not None and (family := lineage(sheet.model)) is not None:
            told[sheet.source.label] = family
    return told


def lineage(model: str) -> str | None:
    """The letters that begin a checkpoint's model_type: `qwen` for qwen2_5_vl and qwen3; None when it is not here.

    A guess, from the config alone and never from a name: mixtral would not be found to be of mistral's lineage.
    """
    from transformers.utils import cached_file

    if (made := zoo.parse(model)) is not None:
        kind: Any = zoo.ZOO[made[0]].family if made[0] in zoo.ZOO else "llama"
    else:
        file: Path | None = Path(model) / "config.json"
        if not Path(model).is_dir():
            try:
                file = Path(str(cached_file(model, "config.json", local_files_only=True)))
            except OSError:
                return None
        kind = json.loads(file.read_text(encoding="utf-8")).get("model_type") if file and file.is_file() else None
    found = re.match(r"[a-z]+", str(kind or "").lower())
    return found[0] if found else None


def _facts(sheets: Sequence[Sheet], families: Mapping[str, str]) -> list[tuple[str, str]]:
    first = sheets[0]
    names = dict.fromkeys(item.benchmark for item in first.items.values())
    facts = [("problems", f"{len(first.items)} of {', '.join(names)}")]
    if first.asked:
        how = first.asked
        facts.append(("asked", f"{how['style']} prompt, temperature {how['temperature']:g}, top-p {how['top_p']:g}"))
    facts.append(("families", ", ".join(f"{name}: {family}" for name, family in families.items()) or "none stated"))
    grader = first.grader
    facts.append(("grader", f"{grader.get('name')} {grader.get('version')}, {grader.get('mcq_policy')}"))
    facts.append(("judge", "none" if first.judge is None else str(first.judge.get("model"))))
    facts.append(("same wrong answer", "by mmcorl.answers.Equivalence, the relation that also votes and grades"))
    return facts
