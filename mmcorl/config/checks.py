"""Cross-field checks of a config, by topic.

Each yields sentences with the value, the rule and the way out; the first one is raised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from mmcorl.answers.relations import RELATIONS
from mmcorl.config.schema import CHECKS, Config
from mmcorl.engines.settings import ENGINES
from mmcorl.labels.rules import RULES
from mmcorl.labels.settings import COUNTING, SAMPLING, EmaSettings
from mmcorl.launch.settings import RaySettings
from mmcorl.prompts.discussion import room
from mmcorl.prompts.styles import STYLES
from mmcorl.rewards import REWARDS, RewardSettings

RESERVED_NAMES = ("gold", "commit")
"""Not for agents: `gold` is the teacher in votes.jsonl, COMMIT a file beside the agents' folders."""

Check = Callable[[Config], Iterator[str]]


def check(function: Check) -> Check:
    """Add a function to the checks of every config."""
    CHECKS.append(function)
    return function


def _repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


@check
def agents(config: Config) -> Iterator[str]:
    for name in _repeated(agent.name.lower() for agent in config.agents):
        called = " and ".join(repr(agent.name) for agent in config.agents if agent.name.lower() == name)
        yield f"two agents are called {called}: names must be unique, in lower case too, rename one"
    for agent in config.agents:
        if agent.name.lower() in RESERVED_NAMES:
            yield f"no agent may be called {agent.name!r}, a name that run files use: rename it"
    for agent in config.agents:
        if agent.ranks > 1 and config.launcher == "local":
            yield (
                f"agent {agent.name!r} has ranks: {agent.ranks}, but launcher 'local' runs one per agent in this "
                "process: use launcher=ray, or ranks: 1"
            )
        if agent.ranks > config.batch.prompts:
            yield (
                f"agent {agent.name!r} has ranks: {agent.ranks}, but a batch has {config.batch.prompts} prompts and "
                "every rank needs at least one: use fewer ranks or raise batch.prompts"
            )


@check
def tensor_parallel(config: Config) -> Iterator[str]:
    together, kind = config.engine.tensor_parallel, config.engine.kind
    if together == 1:
        return
    if kind != "vllm":
        yield (
            f"engine.tensor_parallel is {together}, but engine.kind is {kind!r}, which samples on one rank: use "
            "engine.kind=vllm, or leave it out"
        )
    for agent in (agent for agent in config.agents if agent.ranks % together):
        yield (
            f"engine.tensor_parallel is {together}, but agent {agent.name!r} has ranks: {agent.ranks}, which are not "
            f"teams of {together}: use a multiple of {together} ranks with launcher=ray, or another tensor_parallel"
        )


@check
def programs(config: Config) -> Iterator[str]:
    parts = {"data.train": config.data.train} | {f"data.also[{n}]": part for n, part in enumerate(config.data.also)}
    parts |= {f"validation set {part.name!r}": part.data for part in config.validation.sets}
    for where, data in parts.items() if not config.answers.run_code else ():
        if data.columns.tests is not None:
            yield (
                f"{where} has coding problems, whose answers are what programs of the agents return: allow these to be "
                "run with answers.run_code=true, best on a machine without data you would miss"
            )


@check
def machines(config: Config) -> Iterator[str]:
    if config.time_sliced and config.training.sharding != "none":
        yield (
            f"time_sliced is true with training.sharding {config.training.sharding!r}, but only unsharded weights can "
            "rest in CPU memory: use training.sharding=none, or training.offload"
        )
    settings, defaults = config.ray.model_dump(), RaySettings().model_dump()
    for key in settings if config.launcher != "ray" else ():
        if settings[key] != defaults[key]:
            yield f"ray.{key} is {settings[key]!r}, but launcher is 'local': use launcher=ray, or leave it out"
    if config.launcher == "ray" and config.device.startswith("cuda:"):
        yield f"device is {config.device!r}, but launcher 'ray' assigns each worker its GPU: use device=cuda"


@check
def four_bits(config: Config) -> Iterator[str]:
    training = config.training
    if training.lora is None or training.lora.quantize is None:
        return
    kept = f"training.lora.quantize is {training.lora.quantize!r}"
    if ENGINES.find(config.engine.kind).own_weights:
        yield (
            f"{kept}, but engine.kind {config.engine.kind!r} would sample from weights of its own that are not: use "
            "engine.kind=transformers, or leave quantize out"
        )
    if training.sharding != "none" or config.time_sliced:
        how = "time_sliced" if config.time_sliced else f"training.sharding {training.sharding!r}"
        yield f"{kept} with {how}, which cannot move weights in four bits: leave one of them out"


@check
def one_base(config: Config) -> Iterator[str]:
    if config.training.lora is None or not config.training.lora.share_base:
        return
    if config.launcher != "local":
        yield (
            f"training.lora.share_base is true, but launcher {config.launcher!r} puts each agent into processes of its "
            "own, which share no weights: use launcher=local, or share_base: false"
        )
    if config.training.sharding != "none":
        yield (
            f"training.lora.share_base is true with training.sharding {config.training.sharding!r}, which divides each "
            "agent's weights for itself: use training.sharding=none, or share_base: false"
        )
    if config.time_sliced:
        yield (
            "training.lora.share_base is true with time_sliced, which moves an agent's weights away while others work: "
            "leave one of them out"
        )
    if not _repeated(agent.model for agent in config.agents):
        called = ", ".join(agent.model for agent in config.agents)
        yield (
            f"training.lora.share_base is true, but no two agents name the same model ({called}): let them, or use "
            "share_base: false"
        )


@check
def supervision(config: Config) -> Iterator[str]:
    supervision, rule = config.supervision, RULES.find(config.supervision.kind)
    names = [agent.name for agent in config.agents]
    if len(names) < rule.min_agents:
        yield (
            f"supervision.kind is {supervision.kind!r} with {len(names)} agent{'s' if len(names) > 1 else ''}, but "
            f"needs {rule.min_agents}: add an agent or use supervision.kind=self"
        )
    for setting, user, example in (
        ("teachers", "map", "a teacher for every agent, such as {a: b, b: a}"),
        ("pair", "paired", "the view with the other wording"),
    ):
        if (rule.setting == setting) != (getattr(supervision, setting) is not None):
            yield (
                f"supervision.kind is {supervision.kind!r} {'without' if rule.setting == setting else 'with'} "
                f"supervision.{setting}, which belongs to {user!r} ({example}): give both or neither"
            )
    if supervision.teachers is not None:
        for name in sorted({*supervision.teachers, *supervision.teachers.values()} - set(names)):
            yield f"supervision.teachers names {name!r}, which is no agent of this run: use {', '.join(names)}"
        for name in (name for name in names if name not in supervision.teachers):
            yield f"supervision.teachers has no teacher for agent {name!r}: add one, which may be itself"
    if supervision.pair is not None:
        if supervision.pair not in config.data.train.views:
            known = ", ".join(sorted(config.data.train.views)) or "no views"
            yield (
                f"supervision.pair is {supervision.pair!r}, but the training data have {known}: add it under "
                "data.train.views"
            )
        for agent in (agent for agent in config.agents if agent.view != "original"):
            yield (
                f"agent {agent.name!r} reads view {agent.view!r}, but with supervision.kind 'paired' every agent "
                "reads both wordings: leave its view out"
            )
    yield from _idle_votes(config)
    trained = config.batch.completions
    votes = supervision.votes or trained
    if votes < trained and supervision.voter == "policy":
        yield (
            f"supervision.votes is {votes}, fewer than the {trained} trained completions, which all vote: raise it, "
            "or lower batch.completions"
        )
    if supervision.min_votes > votes:
        yield (
            f"supervision.min_votes is {supervision.min_votes}, but only {votes} completions vote, so no group could "
            "get a label: lower it"
        )


def _idle_votes(config: Config) -> Iterator[str]:
    supervision, reward = config.supervision, REWARDS.find(config.reward.kind)
    rule = RULES.find(supervision.kind)
    ema = supervision.ema != EmaSettings()
    if ema and supervision.voter != "ema" and config.objective.kl_reference != "ema":
        yield (
            "supervision.ema has settings, but no average is kept: use supervision.voter=ema or "
            "objective.kl_reference=ema, or leave it out"
        )
    if config.episode is not None:
        return
    if rule.needs_gold and not (reward.uses_labels or reward.needs_gold):
        yield (
            f"supervision.kind is {supervision.kind!r} with reward.kind {config.reward.kind!r}, which uses no labels: "
            "use reward.kind=match, or supervision.kind=self"
        )
    keys: tuple[str, ...] = ()
    what = ""
    if not rule.by_votes:
        keys, what = (*SAMPLING, *COUNTING), f"supervision.kind {supervision.kind!r}, whose labels are not voted on"
    elif not reward.uses_labels:
        keys, what = SAMPLING, f"reward.kind {config.reward.kind!r}, which uses no labels"
    for key in keys:
        if (held := getattr(supervision, key)) != type(supervision).model_fields[key].default:
            yield f"supervision.{key} is {held!r} with {what}: leave it out"


@check
def episodes(config: Config) -> Iterator[str]:
    if config.episode is None:
        return
    kind, supervision = config.episode.kind, config.supervision
    if config.objective.advantage != "reinforce_pp":
        yield (
            f"episode.kind is {kind!r} with objective.advantage {config.objective.advantage!r}, which compares the "
            "completions of one prompt, but in a conversation all prompts differ: use objective.kind=reinforce_pp"
        )
    if config.reward != RewardSettings():
        yield f"episode.kind is {kind!r}, which defines its own rewards, but reward has settings: leave them out"
    texts, tokens = room(config.episode, len(config.agents), config.sampling.max_new_tokens)
    limit = config.data.max_prompt_tokens
    if limit <= tokens:
        yield (
            f"data.max_prompt_tokens is {limit}, but with episode.kind {kind!r} a prompt shows up to {texts} texts of "
            f"agents, which take up to {tokens} tokens beside the question: use data.max_prompt_tokens="
            f"{limit + tokens}, or lower episode.shown_characters, episode.references or sampling.max_new_tokens"
        )
    for key, unused in (("voter", "policy"), ("votes", None), ("pair", None)):
        if (held := getattr(supervision, key)) != unused:
            yield (
                f"supervision.{key} is {held!r} with episode.kind {kind!r}, where supervision only serves "
                "diagnostics: leave it out"
            )


@check
def answers(config: Config) -> Iterator[str]:
    asked, read = STYLES[config.prompt.style].form, config.answers.extraction
    relation = RELATIONS.find(config.answers.relation)
    if config.answers.threshold is not None and not relation.graded:
        yield (
            f"answers.threshold is {config.answers.threshold:g}, but answers.relation {relation.name!r} is no "
            "similarity: leave it out"
        )
    if config.answers.vote_by == "strings" and relation.name != "math":
        yield (
            f"answers.vote_by is 'strings', which reads LaTeX, but answers.relation is {relation.name!r}: leave it out"
        )
    if relation.form and read == "last_number":
        yield (
            f"answers.extraction is 'last_number', but answers.relation {relation.name!r} compares places in pictures: "
            "use commit"
        )
    for form, mode, cannot in (
        ("boxed", "answer_tags", "reads no boxes"),
        ("answer_tags", "last_number", "reads boxes and numbers, not tags"),
    ):
        if (asked, read) == (form, mode) and config.prompt.instruction is None:
            yield (
                f"answers.extraction is {mode!r}, which {cannot}, but prompt.style {config.prompt.style!r} asks for "
                "them: use commit, or another style"
            )


@check
def steps_and_batches(config: Config) -> Iterator[str]:
    if config.steps is None and config.epochs is None:
        yield "neither steps nor epochs says how long the run is: give one, for example steps: 100"
    if config.steps is not None and config.epochs is not None:
        yield (
            f"steps is {config.steps} and epochs is {config.epochs:g}, but a run has one length: remove one, on a "
            "command line by epochs=null or steps=null"
        )
    if config.profile and config.steps and config.profile.steps[1] > config.steps:
        yield (
            f"profile.steps is {list(config.profile.steps)}, but the run has {config.steps} steps: profile earlier "
            "ones, or leave profile out"
        )
    if config.objective.minibatches > config.batch.prompts:
        yield (
            f"objective.minibatches is {config.objective.minibatches}, but a batch has {config.batch.prompts} prompts: "
            "use at most one minibatch per prompt"
        )
    yield from _uneven_batches(config)
    views = {"original", *config.data.train.views}
    for agent in (agent for agent in config.agents if agent.view not in views):
        yield (
            f"agent {agent.name!r} reads view {agent.view!r}, but the training data have {', '.join(sorted(views))}: "
            "add it under data.train.views"
        )
    sampling = config.sampling
    if (sampling.top_p < 1 or sampling.top_k) and config.objective.importance_correction != "off":
        yield (
            f"sampling.top_p={sampling.top_p}, top_k={sampling.top_k} truncate the distribution, which makes "
            "importance ratios meaningless: use top_p=1 and top_k=0, or objective.importance_correction=off"
        )
    if config.reward.format and STYLES[config.prompt.style].form == "plain":
        yield (
            f"reward.format is {config.reward.format:g}, but prompt.style 'plain' asks for no format: use format=0, or "
            "style answer_tags or boxed"
        )
    if config.batch.completions == 1 and config.objective.advantage != "reinforce_pp":
        yield (
            "batch.completions is 1, but must be at least 2, so that completions can be compared: raise it, or use "
            "objective.advantage=reinforce_pp"
        )


def _uneven_batches(config: Config) -> Iterator[str]:
    objective, size = config.objective, config.objective.bnpo_completions
    if size is None:
        return
    if config.episode is not None:
        yield (
            "objective.aggregation is 'bnpo' with an episode, whose replies are as many as the conversations need: use "
            "objective.aggregation=token"
        )
    prompts = config.batch.prompts * (2 if config.supervision.pair else 1)
    for share in {prompts // objective.minibatches, -(-prompts // objective.minibatches)}:
        if (completions := share * config.batch.completions) % size:
            yield (
                f"objective.bnpo_completions is {size}, but an optimizer step has {completions} completions, which do "
                "not divide into micro-batches of that size: use a divisor"
            )


@check
def images_and_validation(config: Config) -> Iterator[str]:
    low, high = config.vision.min_pixels, config.vision.max_pixels
    if low is not None and high is not None and low > high:
        yield f"vision.min_pixels is {low}, above max_pixels {high}: lower it"
    names = [part.name for part in config.validation.sets] + [part.name for part in config.validation.benchmarks]
    for name in _repeated(names):
        yield f"two validation sets are called {name!r}: names must be unique, rename one"
    if "train" in names:
        yield "no validation set may be called 'train', the name of the training data: rename it"
