"""Cross-field checks of a config: one small function per rule.

Each returns None, or one sentence with the value, the rule and the way out. They run in this order and the first
sentence is raised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from mmcorl.config.schema import CHECKS, Config, RaySettings, RewardSettings
from mmcorl.labels.rules import RULES
from mmcorl.registry import make_importable

RESERVED_NAMES = ("gold", "commit")
"""Not for agents: `gold` is the teacher in votes.jsonl, COMMIT a file beside the agents' folders."""

Check = Callable[[Config], str | None]


def check(function: Check) -> Check:
    """Add a function to the checks of every config."""
    CHECKS.append(function)
    return function


def _repeated(names: Iterable[str]) -> str | None:
    return next((name for name, count in sorted(Counter(names).items()) if count > 1), None)


@check
def agent_names_are_unique_and_free(config: Config) -> str | None:
    names = [agent.name for agent in config.agents]
    if (name := _repeated(names)) is not None:
        return f"two agents are called {name!r}: names must be unique, rename one"
    taken = next((name for name in names if name.lower() in RESERVED_NAMES), None)
    return None if taken is None else f"no agent may be called {taken!r}, a name that run files use: rename it"


@check
def adapters_are_found(config: Config) -> str | None:
    for agent in config.agents:
        make_importable(agent.adapter or "")
    return None


@check
def ranks_fit(config: Config) -> str | None:
    for agent in config.agents:
        if agent.ranks > 1 and config.launcher == "local":
            return (
                f"agent {agent.name!r} has ranks: {agent.ranks}, but launcher 'local' runs one per agent in this "
                "process: use launcher=ray, or ranks: 1"
            )
        if agent.ranks > config.batch.prompts:
            return (
                f"agent {agent.name!r} has ranks: {agent.ranks}, but a batch has {config.batch.prompts} prompts and "
                "every rank needs at least one: use fewer ranks or raise batch.prompts"
            )
    return None


@check
def time_slicing_needs_whole_weights(config: Config) -> str | None:
    if not config.time_sliced or config.training.sharding == "none":
        return None
    return (
        f"time_sliced is true with training.sharding {config.training.sharding!r}, but only unsharded weights can "
        "rest in CPU memory: use training.sharding=none, or training.offload"
    )


@check
def ray_settings_need_ray(config: Config) -> str | None:
    if config.launcher == "ray" or config.ray == RaySettings():
        return None
    settings, default = config.ray.model_dump(), RaySettings().model_dump()
    key = next(key for key in settings if settings[key] != default[key])
    return f"ray.{key} is {settings[key]!r}, but launcher is 'local': use launcher=ray, or leave it out"


@check
def ray_chooses_the_gpu(config: Config) -> str | None:
    if config.launcher == "ray" and config.device.startswith("cuda:"):
        return f"device is {config.device!r}, but launcher 'ray' assigns each worker its GPU: use device=cuda"
    return None


@check
def the_rule_has_what_it_requires(config: Config) -> str | None:
    supervision, rule = config.supervision, RULES.find(config.supervision.kind)
    agents = len(config.agents)
    if agents < rule.min_agents:
        return (
            f"supervision.kind is {supervision.kind!r} with {agents} agent{'s' if agents > 1 else ''}, but needs "
            f"{rule.min_agents}: add an agent or use supervision.kind=self"
        )
    for setting, user, example in (
        ("teachers", "map", "a teacher for every agent, such as {a: b, b: a}"),
        ("pair", "paired", "the view with the other wording"),
    ):
        if (rule.setting == setting) != (getattr(supervision, setting) is not None):
            return (
                f"supervision.kind is {supervision.kind!r} {'without' if rule.setting == setting else 'with'} "
                f"supervision.{setting}, which belongs to {user!r} ({example}): give both or neither"
            )
    return None


@check
def teachers_are_agents(config: Config) -> str | None:
    names, teachers = [agent.name for agent in config.agents], config.supervision.teachers
    if teachers is None:
        return None
    for name in sorted({*teachers, *teachers.values()} - set(names)):
        return f"supervision.teachers names {name!r}, which is no agent of this run: use {', '.join(names)}"
    for name in (name for name in names if name not in teachers):
        return f"supervision.teachers has no teacher for agent {name!r}: add one, which may be itself"
    return None


@check
def wordings_are_views(config: Config) -> str | None:
    views, pair = config.data.train.views, config.supervision.pair
    if pair is None:
        return None
    if pair not in views:
        known = ", ".join(sorted(views)) or "no views"
        return f"supervision.pair is {pair!r}, but the training data have {known}: add it under data.train.views"
    for agent in config.agents:
        if agent.view != "original":
            return (
                f"agent {agent.name!r} reads view {agent.view!r}, but with supervision.kind 'paired' every agent "
                "reads both wordings: leave its view out"
            )
    return None


@check
def enough_completions_vote(config: Config) -> str | None:
    supervision, trained = config.supervision, config.batch.completions
    votes = supervision.votes or trained
    if votes < trained and supervision.voter == "policy":
        return (
            f"supervision.votes is {votes}, fewer than the {trained} trained completions, which all vote: raise it, "
            "or lower batch.completions"
        )
    if supervision.min_votes > votes:
        return (
            f"supervision.min_votes is {supervision.min_votes}, but only {votes} completions vote, so no group could "
            "get a label: lower it"
        )
    return None


@check
def episodes_bring_their_own_rewards(config: Config) -> str | None:
    if config.episode is None:
        return None
    kind, supervision = config.episode.kind, config.supervision
    if config.objective.advantage != "reinforce_pp":
        return (
            f"episode.kind is {kind!r} with objective.advantage {config.objective.advantage!r}, which compares the "
            "completions of one prompt, but in a conversation all prompts differ: use objective.kind=reinforce_pp"
        )
    if config.reward != RewardSettings():
        return f"episode.kind is {kind!r}, which defines its own rewards, but reward has settings: leave them out"
    unused = {
        "voter": supervision.voter == "ema",
        "votes": supervision.votes is not None,
        "pair": supervision.pair is not None,
    }
    for key in (key for key, given in unused.items() if given):
        return (
            f"supervision.{key} is {getattr(supervision, key)!r} with episode.kind {kind!r}, where supervision only "
            "serves diagnostics: leave it out"
        )
    return None


@check
def the_run_has_one_length(config: Config) -> str | None:
    if config.steps is None and config.epochs is None:
        return "neither steps nor epochs says how long the run is: give one, for example steps: 100"
    if config.steps is not None and config.epochs is not None:
        return f"steps is {config.steps} and epochs is {config.epochs:g}, but a run has one length: remove one"
    return None


@check
def profiled_steps_exist(config: Config) -> str | None:
    if config.profile is None or config.steps is None or config.profile.steps[1] <= config.steps:
        return None
    return (
        f"profile.steps is {list(config.profile.steps)}, but the run has {config.steps} steps: profile earlier ones, "
        "or leave profile out"
    )


@check
def minibatches_have_prompts(config: Config) -> str | None:
    if config.objective.minibatches <= config.batch.prompts:
        return None
    return (
        f"objective.minibatches is {config.objective.minibatches}, but a batch has {config.batch.prompts} prompts: "
        "use at most one minibatch per prompt"
    )


@check
def views_are_in_the_data(config: Config) -> str | None:
    views = {"original", *config.data.train.views}
    for agent in (agent for agent in config.agents if agent.view not in views):
        return (
            f"agent {agent.name!r} reads view {agent.view!r}, but the training data have {', '.join(sorted(views))}: "
            "add it under data.train.views"
        )
    return None


@check
def importance_correction_needs_the_whole_distribution(config: Config) -> str | None:
    sampling = config.sampling
    if (sampling.top_p == 1 and sampling.top_k == 0) or config.objective.importance_correction == "off":
        return None
    return (
        f"sampling.top_p={sampling.top_p}, top_k={sampling.top_k} truncate the distribution, which makes importance "
        "ratios meaningless: use top_p=1 and top_k=0, or objective.importance_correction=off"
    )


@check
def the_rewarded_format_exists(config: Config) -> str | None:
    if not config.reward.format or config.prompt.style != "plain":
        return None
    return (
        f"reward.format is {config.reward.format:g}, but prompt.style 'plain' asks for no format: use format=0, or "
        "style answer_tags or boxed"
    )


@check
def completions_are_compared(config: Config) -> str | None:
    if config.batch.completions > 1 or config.objective.advantage == "reinforce_pp":
        return None
    return (
        "batch.completions is 1, but must be at least 2, so that completions can be compared: raise it, or use "
        "objective.advantage=reinforce_pp"
    )


@check
def pixel_bounds_are_ordered(config: Config) -> str | None:
    low, high = config.vision.min_pixels, config.vision.max_pixels
    if low is None or high is None or low <= high:
        return None
    return f"vision.min_pixels is {low}, above max_pixels {high}: lower it"


@check
def validation_names_are_unique(config: Config) -> str | None:
    names = [part.name for part in config.validation.sets] + [part.name for part in config.validation.benchmarks]
    if (name := _repeated(names)) is not None:
        return f"two validation sets are called {name!r}: names must be unique, rename one"
    if "train" in names:
        return "no validation set may be called 'train', the name of the training data: rename it"
    return None
