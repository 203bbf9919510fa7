"""Tiny checkpoints of real architectures, taught a skill and then a wrong habit, for demonstrations on a CPU.

Beside them stand pretrained models, which are fetched and not taught (`mmcorl.apps.demos.fetched`). Every other
entry first learns all four skills of a synthetic task from clean labels, until it answers at least 98 % of unseen
rows. It is then taught a wrong habit on its weak skills: right with probability 0.2, otherwise one too high, or with
the mistake that `mmcorl.synthetic.perception` has for the row. The complementary weakness of two entries is therefore
*planted*: a demonstration shows that co-training repairs it and self-rewarding does not, not that tiny models
discover new perception. Boxes are taught as the family writes them, in pixels or in thousandths.

Instead of its weak skills, an entry can be given habits on cells of its task that overlap with those of other agents
as much as asked: `zoo:qwen2,agent=1/2,kappa=-0.6` (see `mmcorl.apps.demos.habits`). They are taught to a copy of the
model that has learned the task, so that all of a name and seed have one start, as models fine-tuned from one base
have.

Entries of `natural:NAME[,examples=K][,steps=S][@SEED]` have no habit. They are taught a task from few examples, such as
60 handwritten digits, and are wrong where these leave a question open. K says which examples, of which 1 to 10 share
none; another seed begins with other weights; after fewer steps they are less sure.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmcorl.answers import RELATIONS, extract, open_relation
from mmcorl.answers.regions import parse_places, read_places
from mmcorl.apps.demos import captions, fetched
from mmcorl.apps.demos.habits import Examples, Habits, wrong_cells
from mmcorl.errors import UserError
from mmcorl.run.progress import waiting
from mmcorl.synthetic import handwriting, perception
from mmcorl.synthetic import rows as synthetic
from mmcorl.synthetic.perception import PictureRow
from mmcorl.synthetic.rows import SyntheticRow
from mmcorl.system.cache import cache_folder as cache_folder

if TYPE_CHECKING:
    from mmcorl.policy.policy import Policy
    from model_adapters.coordinates import Coordinates


@dataclass(frozen=True)
class Entry:
    family: str
    """Family that `model_adapters.testing.tiny` builds."""
    kind: synthetic.Kind
    """Synthetic task it is taught."""
    weak: tuple[str, ...]
    """Skills with the wrong habit."""

    @property
    def describes(self) -> bool:
        """Whether it also writes about pictures and reads what others wrote: `mmcorl.apps.demos.captions`."""
        return captions.DESCRIBE in self.weak

    def describe(self) -> str:
        habit = f"wrong habit on {' and '.join(self.weak)}" if self.weak else "few examples"
        return f"{self.family}, {self.kind} tasks, {habit}"


ZOO: dict[str, Entry] = {
    "qwen2.5-vl": Entry("qwen2_5_vl", "visual", ("bar", "sum")),
    "internvl3.5": Entry("internvl3_5", "visual", ("dots", "dice")),
    "qwen2.5-vl-twin": Entry("qwen2_5_vl", "visual", ("dots", "dice")),
    "gemma3": Entry("gemma3", "visual", ("dice",)),
    "internvl3.5-dots": Entry("internvl3_5", "visual", ("dots",)),
    "qwen3-vl": Entry("qwen3_vl", "visual", ("bar",)),
    "smolvlm2": Entry("smolvlm", "visual", ("sum",)),
    "gemma4": Entry("gemma4", "visual", ("sum",)),
    "glm4.1v": Entry("glm4v", "visual", ("dots",)),
    "ministral3": Entry("mistral3", "visual", ("dice",)),
    "qwen2": Entry("qwen2", "text", ("add", "count")),
    "llama": Entry("llama", "text", ("subtract", "three")),
    "qwen2.5-vl-grounding": Entry("qwen2_5_vl", "grounding", ("black", "red")),
    "internvl3.5-grounding": Entry("internvl3_5", "grounding", ("green", "blue")),
    "qwen2.5-vl-ocr": Entry("qwen2_5_vl", "ocr", ("one", "five")),
    "internvl3.5-ocr": Entry("internvl3_5", "ocr", ("eight", "nine")),
    "qwen2.5-vl-counting": Entry("qwen2_5_vl", "counting", ("black", "red")),
    "internvl3.5-counting": Entry("internvl3_5", "counting", ("green", "blue")),
    "qwen2.5-vl-captions": Entry("qwen2_5_vl", "visual", (captions.DESCRIBE,)),
    "internvl3.5-captions": Entry("internvl3_5", "visual", (captions.DESCRIBE,)),
}
NATURAL: dict[str, Entry] = {
    "natural:qwen2.5-vl": Entry("qwen2_5_vl", "handwriting", ()),
    "natural:internvl3.5": Entry("internvl3_5", "handwriting", ()),
    "natural:gemma3": Entry("gemma3", "handwriting", ()),
    "natural:qwen3-vl": Entry("qwen3_vl", "handwriting", ()),
    "natural:smolvlm2": Entry("smolvlm", "handwriting", ()),
    "natural:qwen2.5-vl-typefaces": Entry("qwen2_5_vl", "typefaces", ()),
    "natural:internvl3.5-typefaces": Entry("internvl3_5", "typefaces", ()),
    "natural:gemma3-typefaces": Entry("gemma3", "typefaces", ()),
    "natural:qwen2-numbers": Entry("qwen2", "numbers", ()),
    "natural:llama-numbers": Entry("llama", "numbers", ()),
    "natural:qwen3-numbers": Entry("qwen3", "numbers", ()),
}
"""Entries without a habit, taught from few examples."""
ENTRIES = ZOO | NATURAL


SIZES: dict[str, dict[str, Any]] = {
    "gemma3": {"mm_tokens_per_image": 16},
    # Patches of 4 pixels instead of 16, and four instead of nine to a token: 280 patches of a picture, the fewest that
    # the processor makes and the tower pools. A window that reaches back over all tokens of the picture.
    "gemma4": {"vision_config": {"patch_size": 4, "pooling_kernel_size": 2}, "text_config": {"sliding_window": 256}},
}
"""Arguments of `build_tiny` that differ from its defaults, by family."""


@dataclass(frozen=True)
class Recipe:
    """Training recipe of an entry; part of its cache key."""

    version: int = 1
    batch: int = 32
    rows: int = 4096
    """Distinct training rows, each preprocessed once."""
    clean_steps: int = 750
    """Steps on clean labels, learning rate falling from `clean_lr` to a tenth by cosine."""
    clean_lr: float = 3e-3
    more_steps: int = 100
    """Steps added at the lowest rate until `enough` is reached."""
    most_steps: int = 3000
    enough: float = 0.98
    """Greedy accuracy on unseen rows at which the clean stage ends."""
    habit_steps: int = 200
    habit_lr: float = 2e-3
    right: float = 0.2
    """Probability of the right label on a weak skill."""
    checks: int = 400
    """Unseen rows used to measure accuracy."""


RECIPE = Recipe()
RECIPES: dict[synthetic.Kind, Recipe] = {
    "grounding": Recipe(clean_steps=500, more_steps=50, habit_steps=600),
    "ocr": Recipe(clean_steps=700, more_steps=50),
    "counting": Recipe(rows=2048, clean_steps=250, more_steps=50, habit_steps=150),
}
"""Recipes of kinds that need one of their own."""
DESCRIBING = Recipe(rows=2048, batch=48)
"""Recipe of entries that describe and read, too; each of its rows is taught in three roles."""
TAUGHT: dict[synthetic.Kind, Recipe] = {
    "handwriting": Recipe(rows=2000, clean_steps=300, enough=0.0, habit_steps=0),
    "typefaces": Recipe(rows=1000, clean_steps=300, enough=0.0, habit_steps=0),
    "numbers": Recipe(rows=1000, clean_steps=200, enough=0.0, habit_steps=0),
}
"""Recipes of natural kinds: the steps are what they are, however much is known after them."""
UNSPOILED = Habits(wrong=0.0)
"""No habit: the model that knows the task, to which habits on cells are taught."""
TEACH_FROM, CHECK_FROM = 16_000, 24_000
"""First row (of data seed 0) used for training and for checking; a run that uses earlier rows shares none of them."""


def resolve(model: str, *, quiet: bool = False, progress: str = "") -> str:
    """Return a checkpoint path: build a `zoo:` model once and cache it; return anything else as is."""
    entry = parse(model)
    if entry is None:
        return model
    name, seed, habits = entry
    return str(build(name, seed, habits=habits, quiet=quiet, progress=progress))


def parse(model: str) -> tuple[str, int, Habits | Examples | None] | None:
    """Return name, seed and habits of `zoo:NAME[,HABITS][@SEED]`, None for any other model.

    A natural entry's name has its prefix, and its examples come in place of habits.

    Raises UserError: the zoo has no such name, or there are no such habits.
    """
    names = (*ZOO, *fetched.FETCHED)
    if model in names and not Path(model).exists():
        raise UserError(f"there is no folder {model!r}: for the small checkpoint of that name write zoo:{model}")
    natural = model.startswith("natural:")
    if not natural and not model.startswith("zoo:"):
        return None
    what, _, seed = model.removeprefix("zoo:").partition("@")
    name, comma, habits = what.partition(",")
    names = tuple(NATURAL) if natural else names
    if name not in names:
        near = get_close_matches(name, names, 1)
        hint = f"did you mean {near[0] if natural else f'zoo:{near[0]}'!r}? " if near else ""
        raise UserError(f"there is no {model!r}: {hint}{'there are' if natural else 'the zoo has'} {', '.join(names)}")
    if name in fetched.FETCHED and (comma or seed):
        raise UserError(f"{model!r} is a pretrained model, without habits and without a seed: write zoo:{name}")
    if seed and not seed.isdigit():
        raise UserError(f"the seed of {model!r} must be a number, as in {model.partition('@')[0]}@1")
    if natural:
        examples = Examples.parse(habits) if comma else Examples()
        if examples.imbalanced and NATURAL[name].kind != "handwriting":
            raise UserError(f"{model!r}: only models of handwriting can be taught imbalanced examples")
        return name, int(seed or 0), examples
    if comma and ZOO[name].kind in perception.RELATION:
        raise UserError(f"{model!r}: habits on cells are for tasks of sums, such as zoo:qwen2.5-vl; write zoo:{name}")
    return name, int(seed or 0), Habits.parse(habits) if comma else None


def open_models(models: Sequence[str], quiet: bool) -> Iterator[tuple[str, str]]:
    """Yield each model with its folder; those to be made come last, so that a wrong path of another fails at once."""
    with waiting("loading transformers", quiet=quiet):
        missing = [model for model in dict.fromkeys(models) if _is_missing(model)]
    for model in sorted(dict.fromkeys(models), key=lambda model: parse(model) is not None):
        progress = f"{missing.index(model) + 1} of {len(missing)}" if model in missing else ""
        yield model, resolve(model, quiet=quiet, progress=progress)


def _is_missing(model: str) -> bool:
    """Return whether a model is an entry of the zoo that has to be made first."""
    if (entry := parse(model)) is None:
        return False
    name, seed, habits = entry
    return not (_folder(name, seed, _recipe(name, habits), habits) / "zoo.json").is_file()


def _recipe(name: str, habits: Habits | Examples | None) -> Recipe:
    if name in NATURAL:
        taught = TAUGHT[NATURAL[name].kind]
        steps = habits.steps if isinstance(habits, Examples) else None
        return replace(taught, clean_steps=steps or taught.clean_steps)
    if name in fetched.FETCHED:
        return RECIPE
    return DESCRIBING if ZOO[name].describes else RECIPES.get(ZOO[name].kind, RECIPE)


def _folder(name: str, seed: int, recipe: Recipe, habits: Habits | Examples | None) -> Path:
    """Return where an entry is kept."""
    import transformers

    major = transformers.__version__.split(".")[0]
    pretrained = fetched.FETCHED.get(name)
    how = [pretrained.sha256] if pretrained else [asdict(ENTRIES[name]), asdict(recipe)]
    what = json.dumps([*how, major, *([habits.key] if habits else [])], sort_keys=True)
    key = f"{name.replace(':', '-')}-seed{seed}-{hashlib.sha256(what.encode()).hexdigest()[:8]}"
    return cache_folder() / "zoo" / key


def build(
    name: str,
    seed: int = 0,
    recipe: Recipe | None = None,
    *,
    habits: Habits | Examples | None = None,
    quiet: bool = False,
    progress: str = "",
) -> Path:
    """Build one entry, or find it in the cache; return its folder, in hub layout with a zoo.json.

    `recipe` replaces that of its kind, `habits` those of the entry; `progress` is shown, such as `1 of 2`.
    """
    recipe = recipe or _recipe(name, habits)
    folder = _folder(name, seed, recipe, habits)
    if (folder / "zoo.json").is_file():
        return folder
    # Runs that start together want the same entries: the second waits for the first and finds it built.
    lock = cache_folder() / "locks" / folder.name
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if (folder / "zoo.json").is_file():
            return folder
        import torch

        # Under the lock nobody else of this machine builds it: what is there was left by a process that was killed.
        partial = folder.with_name(f".{folder.name}.{socket.gethostname()}.{os.getpid()}")
        for left in folder.parent.glob(f"{partial.stem}.*"):
            shutil.rmtree(left, ignore_errors=True)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # A model this small is several times slower on more.
        try:
            if name in fetched.FETCHED:
                facts = fetched.build(name, partial)
            else:
                facts = _teach(name, seed, recipe, partial, quiet, habits, progress)
        finally:
            torch.set_num_threads(threads)
        (partial / "zoo.json").write_text(json.dumps({"name": name, "seed": seed, **facts}, indent=1) + "\n")
        try:
            partial.rename(folder)
        except OSError:
            if not (folder / "zoo.json").is_file():
                raise
            shutil.rmtree(partial)  # Built meanwhile on another machine, whose locks are not visible here.
    return folder


def _teach(
    name: str, seed: int, recipe: Recipe, folder: Path, quiet: bool, habits: Habits | Examples | None, progress: str
) -> dict[str, Any]:
    from mmcorl.policy.policy import Policy
    from mmcorl.run.progress import task
    from model_adapters.base import VisionSettings
    from model_adapters.registry import adapter_for
    from model_adapters.testing.tiny import build_tiny

    entry = ENTRIES[name]
    planted = habits is not None and not habits.none
    if planted:
        shutil.copytree(build(name, seed, recipe, habits=UNSPOILED, quiet=quiet, progress=progress), folder)
    facts: dict[str, Any] = {}
    shown = f"{progress + ', ' if progress else ''}{name.removeprefix('natural:')}"
    what = f"making demo model {shown} (once, kept in {cache_folder()})"
    with task(what, recipe.clean_steps * (not planted) + recipe.habit_steps, quiet=quiet) as bar:
        if not planted:
            corpus = captions.corpus() if entry.describes else synthetic.prompt_corpus(entry.kind)
            build_tiny(entry.family, folder, corpus=corpus, seed=seed, **SIZES.get(entry.family, {}))
        adapter = adapter_for(folder)
        vision = VisionSettings()
        policy = Policy(adapter.load_model(folder), adapter, adapter.load_processor(folder, vision))
        teacher = _Teacher(policy, entry, seed, recipe, habits)
        if planted:
            facts = {"habits": asdict(habits), "planned": teacher.planned}  # type: ignore[arg-type]
        else:
            done, clean = _learn(teacher, f"{name}@{seed}", bar)
            facts = {"clean_steps": done, "clean_accuracy": clean}
        if habits is None or planted:
            optimizer = teacher.adamw()
            for step in range(recipe.habit_steps):
                optimizer.param_groups[0]["lr"] = recipe.habit_lr * (1 - 0.9 * step / recipe.habit_steps)
                teacher.step(optimizer, teacher.habit)
                bar.advance()
        by_skill = teacher.accuracy_by_skill()
        policy.model.save_pretrained(folder)
    weak = {} if habits else {"weak": list(entry.weak)}
    return facts | {"accuracy": by_skill, **weak}


def _learn(teacher: _Teacher, name: str, bar: Any) -> tuple[int, float]:
    """Teach the clean task until it is known; return the steps that took and the accuracy."""
    recipe = teacher.recipe
    optimizer = teacher.adamw()
    for step in range(recipe.most_steps):
        # 50 warm-up steps, cosine to a tenth, then constant.
        cosine = 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, step / recipe.clean_steps)))
        optimizer.param_groups[0]["lr"] = recipe.clean_lr * ((step + 1) / 50 if step < 50 else cosine)
        teacher.step(optimizer, synthetic.response)
        bar.advance(1 if step < recipe.clean_steps else 0)
        done = step + 1
        if done >= recipe.clean_steps and (done - recipe.clean_steps) % recipe.more_steps == 0:
            clean = teacher.accuracy()
            bar.update(f"right on {clean:.0%} of unseen questions")
            if clean >= recipe.enough:
                return done, clean
    raise RuntimeError(
        f"{name} reached {clean:.3f} clean accuracy in {recipe.most_steps} steps, not {recipe.enough}; try another seed"
    )


class _Teacher:
    """Supervised steps on the synthetic task, and greedy accuracy on unseen rows of it."""

    def __init__(
        self, policy: Policy, entry: Entry, seed: int, recipe: Recipe, habits: Habits | Examples | None = None
    ):
        self.policy, self.entry, self.recipe, self.habits = policy, entry, recipe, habits
        self.random = random.Random(f"habit/{seed}/{entry if habits is None or habits.none else habits}")
        self.wrong: set[synthetic.Cell] = set()
        self.planned: dict[str, Any] = {}
        if isinstance(habits, Habits):
            cells, kappas = wrong_cells(entry.kind, habits)
            self.wrong = cells[habits.agent - 1]
            self.planned = {"wrong": sorted(self.wrong), "kappas": kappas}
        # A habit needs fewer rows than the task, and to read them is half of its time.
        count = recipe.rows if habits is None or habits.none else recipe.rows // 4
        self.rows: list[SyntheticRow | PictureRow]
        if isinstance(habits, Examples):
            lesson = synthetic.TASKS[entry.kind].lesson
            if habits.imbalanced:
                lesson = partial(handwriting.lesson, imbalanced=True)
            self.rows = list(lesson(habits.number, count))
        else:
            self.rows = self._rows(0, TEACH_FROM, count)
        self.encoded = [self._encode(row) for row in self.rows]
        self.order: list[int] = []
        self.relation = RELATIONS.find(perception.RELATION.get(entry.kind, "exact"))
        if self.relation.form:
            self.coordinates = self._coordinates()
            self.rows = [self._worded(row) for row in self.rows if isinstance(row, PictureRow)]

    def adamw(self) -> Any:
        """Return a fresh optimizer; each step sets its rate."""
        import torch

        return torch.optim.AdamW(self.policy.parameters(), betas=(0.9, 0.99), weight_decay=0.0)

    def step(self, optimizer: Any, label: Callable[[SyntheticRow | PictureRow], str]) -> None:
        """Take one cross-entropy step on response tokens."""
        import torch

        from mmcorl.policy.policy import Rows

        if len(self.order) < self.recipe.batch:
            self.order = self.random.sample(range(len(self.rows)), len(self.rows))
        picked = [self.order.pop() for _ in range(self.recipe.batch)]
        tokenizer = getattr(self.policy.processor, "tokenizer", self.policy.processor)
        stop = self.policy.stop_ids[0]
        targets = [
            torch.tensor([*tokenizer.encode(label(self.rows[i]), add_special_tokens=False), stop]) for i in picked
        ]
        logp = self.policy(Rows([self.encoded[i] for i in picked], range(len(picked)), targets))
        optimizer.zero_grad(set_to_none=True)
        (-logp.mean()).backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        optimizer.step()

    def habit(self, row: SyntheticRow | PictureRow) -> str:
        right = self._right(row)
        wrong = right < 1 and self.random.random() >= right
        return synthetic.wrong_response(row) if wrong else synthetic.response(row)

    def _right(self, row: SyntheticRow | PictureRow) -> float:
        """Return the probability of the right label."""
        if self.habits is None:
            return self.recipe.right if row.skill in self.entry.weak else 1.0
        assert isinstance(self.habits, Habits)
        assert isinstance(row, SyntheticRow)  # others have no cells
        return self.habits.weak if row.cell in self.wrong else self.habits.strong

    def accuracy_by_skill(self) -> dict[str, float]:
        from mmcorl.engines.base import Sampling
        from mmcorl.engines.transformers import TransformersEngine

        unseen = (1, 0) if isinstance(self.habits, Examples) else (0, CHECK_FROM)
        rows = self._rows(*unseen, self.recipe.checks, whole=True)
        engine = TransformersEngine(self.policy)
        greedy = Sampling(0.0, max_new_tokens=24 if self.relation.form else 16)
        drawn = engine.generate([self._encode(row) for row in rows], 1, greedy, 0)
        right: dict[str, list[bool]] = {}
        with open_relation(self.relation.name) as relation:
            for row, (sample,) in zip(rows, drawn, strict=True):
                text = self.policy.adapter.decode(self.policy.processor, sample.ids.tolist())
                tagged = not isinstance(row, PictureRow) or row.tagged
                answer = extract(text, sample.finish_reason).answer if tagged else text.strip()
                if answer is not None and self.relation.form:
                    answer = read_places(answer, self.relation.form, self.coordinates.canonical)
                right.setdefault(row.skill, []).append(relation.same(answer, str(row.answer)))
        return {skill: sum(hits) / len(hits) for skill, hits in right.items()}

    def accuracy(self) -> float:
        skills = self.accuracy_by_skill()
        return sum(skills.values()) / len(skills)

    def _rows(self, seed: int, first: int, count: int, whole: bool = False) -> list[SyntheticRow | PictureRow]:
        rows = [synthetic.row(self.entry.kind, seed, first + i) for i in range(count)]
        if self.entry.describes:
            return [each for row in rows if isinstance(row, SyntheticRow) for each in captions.roles(row, whole)]
        return rows

    def _coordinates(self) -> Coordinates:
        """Return the family's coordinates in pictures of the task, which all have one size."""
        from model_adapters.coordinates import Coordinates

        adapter = self.policy.adapter
        assert adapter.coordinates is not None
        return Coordinates.of(adapter.coordinates, self.encoded[0].images[0].size)

    def _worded(self, row: PictureRow) -> PictureRow:
        """Return the row with its boxes as the family writes them, without spaces."""

        def written(box: str) -> str:
            (region,) = parse_places(box)
            return json.dumps([round(edge) for edge in self.coordinates.written(region)], separators=(",", ":"))

        return replace(row, answer=written(row.answer), mistake=written(row.mistake))

    def _encode(self, row: SyntheticRow | PictureRow) -> Any:
        from model_adapters.images import load_image

        images = [load_image(row.image)] if row.image else []
        return self.policy.adapter.encode(self.policy.processor, row.question, images)
