"""Every setting of a run, with its meaning below it.

One class per section of the YAML file; a docstring below a field is its documentation, in errors too. Checks that need
several sections are in `mmcorl.config.checks`. No torch here: `mmcorl --help` and config errors answer at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationInfo,
    field_validator,
    model_validator,
)

from mmcorl.algo.objectives import OBJECTIVES
from mmcorl.answers.extract import Mode
from mmcorl.answers.relations import RELATIONS
from mmcorl.data.settings import DataSettings
from mmcorl.engines import ENGINES
from mmcorl.labels.rules import RULES
from mmcorl.registry import Row, Table
from mmcorl.rewards import REWARDS, SETTINGS
from mmcorl.system.user_code import importable
from mmcorl.types import PromptStyle
from model_adapters.coordinates import Convention

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class MayChangeOnResume:
    """Marks a field whose value, or a section whose values, a resumed run may change; see `Resumable`."""


Resumable = Annotated[T, MayChangeOnResume()]
"""A setting that leaves the method alone: a run may be resumed with another value, on another machine or after it ran
out of memory. A run that changes device, threads, engine or ranks draws other samples from then on."""


@dataclass(frozen=True)
class TableName(AfterValidator):
    """Validates the name of a row; `table` has the built-in ones."""

    table: Mapping[str, Row] = field(default_factory=dict, compare=False)

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"enum": [*self.table]}, {"type": "string", "pattern": ":"}]}


def _unasked(name: str | None, info: ValidationInfo) -> bool:
    """Whether a name is that of a user's row in the config of a run that is only read: its code is not imported."""
    return bool(info.context and name and ":" in name)


def _row_of(table: Table[Any]) -> AfterValidator:
    def find(name: str, info: ValidationInfo) -> str:
        return name if _unasked(name, info) else table.find(name).name

    return TableName(find, table)


RuleName = Annotated[str, _row_of(RULES)]
RewardName = Annotated[str, _row_of(REWARDS)]
RelationName = Annotated[str, _row_of(RELATIONS)]
ObjectiveName = Annotated[str, _row_of(OBJECTIVES)]
EngineName = Annotated[str, _row_of(ENGINES)]


TrackerName = Literal["wandb", "trackio", "mlflow", "swanlab", "comet_ml", "aim"]
AdapterName = Annotated[
    str | None, AfterValidator(lambda name, info: name if name is None or info.context else importable(name))
]
"""`package.module:Class`, or `file.py:Class`, which becomes the former."""
BenchmarkName = Annotated[
    str, AfterValidator(lambda name, info: importable(name) if ":" in name and not info.context else name)
]


MOST = 2**53
"""Of a whole number; larger ones overflow in arithmetic."""
MOST_FLOAT = 1e30
"""Of any other number; arithmetic in 32 bits has no room for much more."""

MOST_SAMPLES = 2**16
"""Of one prompt by one agent; the published recipes take 4 to 64, and far more only fill the memory."""


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values do not change, docstrings are descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _sensible_number(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[str(info.field_name)].annotation
        # Other readers of YAML take `off` for false.
        if value is False and any("off" in get_args(part) for part in (annotation, *get_args(annotation))):
            return "off"
        # pydantic reads true as 1.
        if isinstance(value, bool) and {int, float} & {annotation, *get_args(annotation)}:
            raise ValueError(f"{str(value).lower()} is not a number: write one")
        return cls._within_bounds(value)

    @field_validator("*", mode="after")
    @classmethod
    def _within_bounds(cls, value: Any) -> Any:
        """Refuse numbers that are too large, as they stand in the file and as they were read out of text."""
        if isinstance(value, int) and abs(value) > MOST:
            shown = f"{value:.3g}" if abs(value) < 10**300 else "that number"
            raise ValueError(f"{shown} is too large: write a number of at most {MOST}")
        if isinstance(value, float) and math.isfinite(value) and abs(value) > MOST_FLOAT:
            raise ValueError(f"{value:.3g} is too large: write a number of at most {MOST_FLOAT:g}")
        return value


def _filled(starting: Mapping[str, Any], raw: Mapping[str, Any], read: Callable[[Any], M]) -> M:
    """Read a section with values that follow from others in it, which do not count as set by the user."""
    section = read({**starting, **raw})
    section.model_fields_set.intersection_update(raw)
    return section


class AgentSettings(Section):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    """Unique short name, of letters, digits, `_`, `.`, `-`; names folders, metrics and plots."""
    model: str
    """Checkpoint folder, hub id, or `zoo:NAME[,HABITS][@SEED]` (see `mmcorl zoo`)."""
    adapter: AdapterName = None
    """`package.module:Class` or `file.py:Class` of a family from outside; by default chosen from config.json."""
    coordinates: Convention | None = None
    """How this agent writes points and boxes: in pixels of the image as it sees it, in thousandths or fractions of the
    image's sides, ...; by default as its family does."""
    view: str = "original"
    """Which wording of the questions this agent reads: `original` or a view of the training data. Data without
    views, such as a validation set, are read in their original wording."""
    template: dict[str, Any] | Literal["off"] = Field(default_factory=dict)
    """Arguments of this agent's chat template, such as {enable_thinking: false} for Qwen3; unknown ones are refused.
    `off` does without a template: the model reads the question and its instruction alone, as a base model continues
    a text. It then takes neither images nor a system message."""
    lr: float | None = Field(default=None, gt=0)
    """Learning rate of this agent; by default `optimizer.lr`."""
    ranks: Resumable[int] = Field(default=1, ge=1)
    """Workers of this agent, one per GPU; above 1 with `launcher: ray` only. They share out each batch in order, the
    first ones taking one prompt more where it does not divide evenly, so there are at most `batch.prompts`."""


class BatchSettings(Section):
    prompts: int = Field(default=8, ge=1)
    """B: prompts per step, the same rows for every agent."""
    completions: int = Field(default=8, ge=1, le=MOST_SAMPLES)
    """K: completions per prompt and agent, or with an `episode` conversations about each problem; at least 2 where
    completions are compared with each other, which `objective.advantage: reinforce_pp` alone does not."""


class SamplingSettings(Section):
    temperature: float = Field(default=1.0, gt=0)
    """Temperature of training rollouts; log-probabilities use it too."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus mass; below 1 the importance ratio loses its meaning, so correction must be off."""
    top_k: int = Field(default=0, ge=0)
    """Keep the k likeliest tokens; 0 keeps all. Above 0 the importance correction must be off."""
    max_new_tokens: int = Field(default=1024, ge=1)
    """Longest completion in tokens; one that is cut off before it commits to an answer casts no vote."""


class PromptSettings(Section):
    style: PromptStyle = "answer_tags"
    """Instruction after the question: think/answer tags (`answer_tags`), a LaTeX box (`boxed`) or none (`plain`); or
    the authors' strings, for text agents (`paper_text`), for vision-language agents (`paper_tags`) and for
    vision-language models before training (`paper_boxed`, which has a system message)."""
    instruction: str | None = None
    """Text after every question, as it is written, spaces and line breaks included, in place of that of `style`;
    `style` then only says which form of an answer `reward.format` rewards."""
    system: str | None = None
    """System message; by default that of `style`, which only `paper_boxed` has. "" sends none."""


class VisionConfig(Section):
    max_side: int = Field(default=1024, ge=28)
    """Longest image side in pixels; larger images are scaled down."""
    tiles: int = Field(default=1, ge=1, le=64)
    """Most tiles per image (InternVL); 1 switches tiling off. One setting for training and evaluation."""
    min_pixels: int | None = Field(default=None, ge=28 * 28)
    """Lower pixel budget per image (Qwen); by default the checkpoint's."""
    max_pixels: int | None = Field(default=None, ge=28 * 28)
    """Upper pixel budget per image (Qwen); by default the checkpoint's."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of single families by name, such as those that an adapter from outside adds; an agent reads those of its
    family, and a name that no agent's family has is refused."""


class EmaSettings(Section):
    start: float = Field(default=0.01, gt=0, le=1)
    """Share of the student that the teacher takes over at step 1."""
    end: float = Field(default=1e-5, gt=0, le=1)
    """That share after the last step; in between it falls along a cosine."""


class AnswerSettings(Section):
    relation: RelationName = "math"
    """When two answers are the same, for votes, rewards and validation sets: mathematics by value (`math`), other texts
    (`exact`, `text`, readings by edit distance `edit`, amounts `number`) or places in a picture (`point`, `points`,
    `box`, `boxes`); or your own, `file.py:name`. Benchmarks keep their graders."""
    threshold: float | None = Field(default=None, gt=0, le=1)
    """Similarity from which two answers count as the same, for relations that are similarities: overlap of boxes (0.5),
    edit similarity (0.8), nearness of amounts and points (0.95). `mmcorl.answers.relations` has the defaults."""
    extraction: Mode = "commit"
    """What the answer of a response is, for votes, rewards and validation sets: what it commits to in answer tags or a
    box outside of drafts (`commit`); a box, else what follows `the answer is`, else the last number (`last_number`, the
    authors' text training); what stands in closed answer tags and nothing else (`answer_tags`, their VLM training); or
    as `commit`, and without tags and box all that follows the thinking (`whole`, for short answers about pictures).
    What has no answer casts no vote and earns 0."""
    run_code: bool = False
    """Whether programs that agents write are run, in a sandbox (`mmcorl/sandbox/THREATS.md`), as data with coding
    problems need: the answer of a completion is then what its last code block returns on the inputs of the problem,
    whatever `relation` and `extraction` say."""
    vote_by: Literal["values", "strings"] = "values"
    """What makes two answers one vote: the relation (`values`), so that labels reward whom they count; or equal strings
    after normalising LaTeX (`strings`, the authors'), where 0.25 and 1/4 split a vote and the label then rewards
    both."""


class SupervisionSettings(Section):
    kind: RuleName = "ring"
    """Who teaches whom: a rule of `mmcorl.labels.rules`, such as the next agent (`ring`, Co-RL), oneself (`self`: TTRL)
    or the known answers (`gold`: GT-Reward); or your own, `file.py:name`."""
    teachers: dict[str, str] | None = None
    """With `kind: map`: the teacher of every agent, such as {a: b, b: a}."""
    pair: str | None = None
    """With `kind: paired`: the view of the training data with the other wording. Both wordings are sampled and
    trained, so a step has twice `batch.prompts` prompts."""
    votes: int | None = Field(default=None, ge=1, le=MOST_SAMPLES)
    """M: samples that vote. More than `batch.completions` of them: the first K are trained as well, the others only
    vote (TTRL: 64 and 32). By default as many as are trained."""
    voter: Literal["policy", "ema"] = "policy"
    """Who votes for an agent: its samples, or those of a slow average of its weights (`ema`: Co-rewarding-II)."""
    ema: EmaSettings = EmaSettings()
    """With `voter: ema` or `objective.kl_reference: ema`."""
    tie: Literal["first_seen", "drop", "lexicographic"] = "first_seen"
    """Which answer wins a tied vote: the first sampled (the paper), none, or the first in string order."""
    min_votes: int = Field(default=1, ge=1)
    """Fewest votes a winner needs; below it the group has no pseudo-label and earns nothing."""
    min_share: float = Field(default=0.0, ge=0, le=1)
    """Smallest share of the parsed votes a winner needs."""


SAMPLING = ("votes", "voter")
"""Settings of `supervision` that say what is sampled for a vote."""
COUNTING = ("tie", "min_votes", "min_share")
"""Those that say how it is counted."""


class RewardSettings(Section):
    kind: RewardName = "match"
    """How a completion is rewarded: by a reward of `mmcorl.rewards`, such as 1 where its answer equals the pseudo-label
    (`match`) or how sure the model was (`entropy`, RENT; `self_certainty`, Intuitor), for which labels are only
    recorded; or your own, `file.py:name`. `reward: KIND` is short for it."""
    unanswered_entropy: float | None = Field(default=None, ge=0)
    """With `entropy`: a completion without an answer counts as one of this entropy, in nats (RENT's variant: 7.0)."""
    format: float = Field(default=0.0, ge=0)
    """Added to the reward of a completion that is written as `prompt.style` asks; 0 (the paper) adds nothing."""

    @model_validator(mode="before")
    @classmethod
    def _by_its_kind(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _measured(self, info: ValidationInfo) -> Self:
        for key in SETTINGS if not _unasked(self.kind, info) else ():
            if getattr(self, key) is not None and key not in REWARDS.find(self.kind).settings:
                raise ValueError(
                    f"{key} is {getattr(self, key):g} but kind is {self.kind!r}, which does not use it: leave it out"
                )
        return self


class ObjectiveSettings(Section):
    kind: ObjectiveName | None = None
    """An objective by name (`mmcorl.algo.objectives`), or your own surrogate loss, `file.py:name`. A name
    sets those of the settings below that are not written, and refuses other values of those that define it. The default
    is GRPO as in the paper. `gspo` and `cispo` differ from GRPO (with their aggregation) only where `minibatches` or
    `passes` is above 1."""
    advantage: Literal["group", "rloo", "reinforce_pp", "reinforce_pp_baseline"] = "group"
    """From rewards to advantages: against mean and standard deviation of the group (GRPO); against the mean of the
    group's others (RLOO); the return of each token, whitened over all tokens of the batch (REINFORCE++), which does
    without groups; or against the mean of the group, then whitened."""
    ratio: Literal["token", "sequence"] = "token"
    """What is compared with the policy before the first step on a batch: each token, or each completion by the
    geometric mean over its tokens (GSPO)."""
    clip: Literal["ppo", "cispo"] = "ppo"
    """Outside the bounds a token has no gradient (`ppo`), or keeps it with a weight of at most 1 + clip_high, without a
    lower bound (`cispo`)."""
    aggregation: Literal["sequence", "token", "bnpo", "dr_grpo"] = "sequence"
    """Loss over the whole optimizer batch: mean of per-completion means (`sequence`, the paper's Eq. 5), mean over
    tokens (`token`), mean over TRL's micro-batches of the means over their tokens (`bnpo`, the authors' runs), or sum
    over a constant length (`dr_grpo`)."""
    bnpo_completions: int | None = Field(default=None, ge=1)
    """With `aggregation: bnpo`: completions per micro-batch of TRL (`per_device_train_batch_size`), drawn from the
    optimizer batch at random. 1 is `sequence`, and all of them `token`. How much is computed at once is another setting
    and changes nothing: `training.tokens_per_microbatch`."""
    advantage_std: Literal["unbiased", "population", "none"] = "unbiased"
    """Divisor of the centred rewards: K-1 standard deviation (TRL), K (the theory), or none (Dr. GRPO). The same where
    the tokens of a batch are whitened: n-1 (verl), n (OpenRLHF), or none."""
    advantage_eps: float = Field(default=1e-4, ge=0)
    """Added to that divisor; to the variance, squared, where tokens are whitened."""
    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """Ratios below 1 - clip_low are clipped."""
    clip_high: float = Field(default=0.2, ge=0)
    """Ratios above 1 + clip_high are clipped."""
    clip_dual: float | None = Field(default=None, gt=1)
    """Ratios above this are clipped where the advantage is negative, too (dual clip; MM-UPT: 3.0)."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL penalty to the reference; 0 (the paper) needs no reference model."""
    kl_reference: Literal["start", "ema"] = "start"
    """What the KL penalty holds on to: the starting weights, or the slow average of `supervision.ema`."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of that KL."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where that penalty goes: added to the loss of each token, or subtracted from the reward, from the last token back
    to the first with `advantage: reinforce_pp` and as a sum per completion otherwise."""
    importance_correction: Literal["auto", "token_truncate", "off"] = "auto"
    """Weight of each token for the drift of the engine: min(exp(log pi_train - log pi_engine), cap); `auto` asks the
    model family: token_truncate or off."""
    importance_cap: float = Field(default=3.0, gt=0)
    """Bound of that weight."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer steps per pass over a rollout batch; whole prompts per minibatch."""
    passes: int = Field(default=1, ge=1)
    """Passes over each rollout batch; with 1 pass and 1 minibatch the update is exactly on-policy."""
    mask_truncated: bool = False
    """Leave completions that were cut off at `sampling.max_new_tokens` out of the loss; their rewards still count in
    their group (DAPO's overlong filtering, CoMAS)."""

    @model_validator(mode="wrap")
    @classmethod
    def _named(cls, value: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        kind = value.get("kind") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in OBJECTIVES:
            return read(value)
        return _filled({**OBJECTIVES[kind].starting, **OBJECTIVES[kind].defining}, value, read)

    @model_validator(mode="after")
    def _possible(self, info: ValidationInfo) -> Self:
        known = self.kind and not _unasked(self.kind, info)
        for key, must in OBJECTIVES.find(str(self.kind)).defining.items() if known else ():
            if (held := getattr(self, key)) != must:
                raise ValueError(
                    f"kind is {self.kind!r}, which means {key} {must!r}, but {key} is {held!r}: leave one of them out"
                )
        if (self.aggregation == "bnpo") != (self.bnpo_completions is not None):
            raise ValueError(
                f"aggregation is {self.aggregation!r} {'with' if self.bnpo_completions else 'without'} "
                "bnpo_completions, which is the size of the micro-batches of 'bnpo' (the authors' pairs: 2): give both "
                "or neither"
            )
        if self.kl_reference == "ema" and not self.kl_coef:
            raise ValueError(
                "kl_reference is 'ema' with kl_coef 0, so that no penalty refers to it: raise kl_coef, or use start"
            )
        if self.kl_coef and self.kl_in == "loss" and self.kl_estimator == "k1":
            raise ValueError(
                f"kl_coef is {self.kl_coef:g} with kl_estimator 'k1', whose gradient is zero on average, so that it "
                "would penalise nothing: use k3 or k2, kl_in=reward, or kl_coef=0"
            )
        if self.ratio == "sequence" and self.advantage == "reinforce_pp" and self.kl_in == "reward" and self.kl_coef:
            raise ValueError(
                "ratio is 'sequence', one ratio for a completion, but advantage 'reinforce_pp' with kl_in 'reward' "
                "gives each of its tokens another advantage: use ratio=token, kl_in=loss or another advantage"
            )
        if self.clip_dual is not None and (self.clip == "cispo" or self.clip_dual <= 1 + self.clip_high):
            raise ValueError(
                f"clip_dual is {self.clip_dual:g} with clip {self.clip!r} and clip_high {self.clip_high:g}, but bounds "
                "ratios above 1 + clip_high with clip 'ppo': raise it, or leave it out"
            )
        return self

    @property
    def surrogate(self) -> Callable[..., Any] | None:
        """The user's own surrogate loss; None for a built-in objective."""
        return OBJECTIVES.find(self.kind).function if self.kind else None


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSettings(Section):
    lr: float = Field(default=1e-6, gt=0)
    """Peak learning rate of AdamW."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Moment decay rates, two numbers from 0 to below 1."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """Learning rate after the warm-up."""
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    """Final learning rate as a share of the peak (linear and cosine)."""
    warmup_ratio: float = Field(default=0.03, ge=0, le=1)
    """Share of the steps spent on a linear warm-up."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this global norm."""


def _refuse_idle(section: Any, keys: Iterable[str], by: str = "kind") -> None:
    """Raise ValueError where one of `keys` is set, which mean nothing with the section's value of `by`."""
    for key in keys:
        if (held := getattr(section, key)) != type(section).model_fields[key].default:
            shown = held.kind if isinstance(held, VerifierSettings) else held
            chosen = getattr(section, by)
            raise ValueError(f"{key} is {shown!r} but {by} is {chosen!r}, which has no use for it: leave it out")


class VerifierSettings(Section):
    kind: Literal["majority", "gold", "served"] = "majority"
    """What scores an answer, in [0, 1]: whether it is what most answers to the problem say, of all agents, turns and
    conversations (`majority`, label-free), whether it is the known answer (`gold`), or a model behind an
    OpenAI-compatible endpoint (`served`)."""
    model: str | None = None
    """With `served`: name under which the endpoint serves the model."""
    base_url: str = "http://localhost:8000/v1"
    """With `served`: its address, up to and with `/v1`."""
    api_key_env: str | None = None
    """With `served`: environment variable that holds the key, for an endpoint that wants one."""
    concurrency: int = Field(default=16, ge=1)
    """With `served`: requests under way at once, at most."""
    max_tokens: int = Field(default=2048, ge=1)
    """With `served`: room for its reply."""

    @model_validator(mode="after")
    def _named(self) -> Self:
        if (self.kind == "served") != (self.model is not None):
            raise ValueError(
                f"kind is {self.kind!r} {'without' if self.kind == 'served' else 'with'} a model, which is for "
                "'served': give both or neither"
            )
        _refuse_idle(self, ("base_url", "api_key_env", "concurrency", "max_tokens") if self.kind != "served" else ())
        return self


OF_DEBATES = ("gamma", "mix", "verifier", "shaping")
"""Settings of an episode that CoMAS has no use for."""


class EpisodeSettings(Section):
    kind: Literal["debate", "comas"]
    """How agents talk about a problem before they learn: they answer, read each other and answer again, and a verifier
    scores the answers (`debate`: MAPoRL, MARTI); or they solve it, evaluate each other's solutions and score them
    (`comas`: CoMAS). Rewards come from the conversation alone, and `supervision` only serves diagnostics. No value
    model is trained, MAPoRL's included: `objective.kind: reinforce_pp` makes advantages of them."""
    rounds: int = Field(default=2, ge=1)
    """Turns of a debate; rounds of solving, evaluating and scoring."""
    references: int = Field(default=2, ge=0)
    """How many answers of others (or solutions with their evaluations) from the round before a solver is shown, drawn
    at random; in a debate it sees its own answer as well."""
    shown_characters: int = Field(default=4000, ge=1)
    """Longest text of an agent that is shown in another's prompt, in characters; the middle of a longer one is left
    out. Prompts must stay within `data.max_prompt_tokens`."""
    evaluators: Literal["others", "anyone"] = "others"
    """With `comas`: whose solution an agent evaluates, in each round one: another's, or its own as well (`anyone`, the
    code of CoMAS)."""
    verifier: VerifierSettings = VerifierSettings()
    """With `debate`."""
    mix: Literal["discounted", "margin"] = "discounted"
    """With `debate`: what an answer earns. Its own score and, discounted, the means over all agents reached in later
    turns (`discounted`, MAPoRL); or its own score and its margin over the mean of earlier turns (`margin`, MARTI)."""
    gamma: float = Field(default=0.3, ge=0, le=1)
    """With `mix: discounted`: weight of each later turn, relative to the one before it."""
    shaping: float = 0.5
    """With `mix: margin`: MARTI's alpha, the weight of the margin."""

    @model_validator(mode="after")
    def _used(self) -> Self:
        _refuse_idle(self, OF_DEBATES if self.kind == "comas" else ("evaluators",))
        _refuse_idle(self, ("shaping" if self.mix == "discounted" else "gamma",), "mix")
        return self


class LoraSettings(Section):
    rank: int = Field(default=16, ge=1, le=2**14)
    """Rank of the adapters; one as large as a layer is wide saves nothing."""
    alpha: int = Field(default=32, gt=0)
    """Scale: the update is multiplied by alpha / rank."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Layers that get an adapter, as peft names them: a list, or a regular expression of whole names."""
    share_base: Resumable[bool] = False
    """Agents that name the same `model` keep its weights in memory once, and each has adapters of its own: the same run
    in less memory."""
    quantize: Literal["nf4"] | None = None
    """Keep the frozen weights of all linear layers but the head in four bits, by bitsandbytes (QLoRA: NF4 with
    quantized scales). That is another agent: adapters are trained on, and merged into, what four bits leave."""

    @field_validator("target_modules")
    @classmethod
    def _expression(cls, value: Any) -> Any:
        try:
            re.compile(value if isinstance(value, str) else "")
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"{value[:80]!r} is no regular expression ({error}): correct it, or list names") from error
        return value


class TrainingSettings(Section):
    dtype: Literal["fp32", "bf16"] = "bf16"
    """Arithmetic of forward and backward; master weights and log-probabilities stay in fp32."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Attention implementation of transformers; where scores are capped (Gemma-2), `sdpa` means `eager`."""
    tokens_per_microbatch: Resumable[int] = Field(default=16384, ge=1)
    """Most tokens of one forward and backward, a shared prompt counted once and padding too; changes memory, not the
    update."""
    shared_prefix: Literal["auto", "on", "off"] = "auto"
    """Compute a prompt once for all its completions instead of once for each: the same update, several times faster
    where prompts are long. `auto` does so for models whose log-probabilities it compared at the start, and otherwise
    says why not; `on` refuses other models."""
    gradient_checkpointing: Resumable[bool] = False
    """Recompute activations in backward: less memory, about a third more arithmetic."""
    freeze_vision: bool = False
    """Keep the vision tower fixed. Nothing is ever frozen without this setting."""
    lora: LoraSettings | None = None
    """Train low-rank adapters instead of all weights."""
    sharding: Resumable[Literal["none", "zero2", "zero3", "fsdp2"]] = "none"
    """What is sharded over the ranks of an agent: nothing; gradients and optimizer state (`zero2`); or weights too
    (`zero3`, DeepSpeed, and `fsdp2`, torch). The update is the same. With weights divided, `engine.kind: transformers`
    samples from a whole copy on every rank, which small models alone leave room for."""
    offload: Resumable[Literal["none", "optimizer", "all"]] = "none"
    """What lies in CPU memory between uses: the optimizer state (ZeRO), or the weights too (`zero3`, `fsdp2`)."""

    @model_validator(mode="after")
    def _offload_fits(self) -> Self:
        can = {"none": (), "zero2": ("optimizer",), "zero3": ("optimizer", "all"), "fsdp2": ("all",)}[self.sharding]
        if self.offload != "none" and self.offload not in can:
            way = f"use {can[-1]} or none" if can else "choose a sharding that moves things, such as zero3, or none"
            raise ValueError(f"offload is {self.offload!r} but sharding {self.sharding!r} cannot do that: {way}")
        return self


class EngineSettings(Section):
    kind: EngineName = "transformers"
    """What samples: `transformers` uses the trained weights themselves; `vllm` holds its own in each rank's process, as
    large models need, and receives the new ones after every update."""
    max_rows: int | None = Field(default=None, ge=1)
    """Most completions generated at once; changes memory and speed, and results by rounding only. By default 256, and
    for vllm up to 1,024 where a rank samples so many in a step."""
    max_tokens: int = Field(default=2**18, ge=1)
    """Most tokens (prompt, completion and padding) in the KV cache at once, likewise. For vllm see
    `gpu_memory_utilization`."""
    dtype: Literal["fp32", "bf16", "fp16"] | None = None
    """Weights and arithmetic of vllm; by default `training.dtype`."""
    gpu_memory_utilization: float = Field(default=0.4, gt=0, lt=1)
    """Share of the GPU that vllm may fill with weights and KV cache while it samples."""
    kv_cache_gib: float | None = Field(default=None, gt=0)
    """GiB of KV cache of vllm; by default what `gpu_memory_utilization` leaves, and 1 on the CPU."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Longest prompt and completion together in vllm; by default the longest of each that this run allows."""
    enforce_eager: bool = False
    """Start vllm without compiling and capturing graphs: sooner ready, slower. Always so on the CPU."""
    sleep: bool = True
    """Free vllm's GPU memory during updates."""
    tensor_parallel: int = Field(default=1, ge=1)
    """Ranks of an agent that hold one copy of vllm's weights together, a part each, and sample as one; for models whose
    weights and KV cache do not fit on one GPU. Divides `ranks`."""
    parity: Literal["stop", "warn"] = "stop"
    """What to do where engine and trainer, compared before the first step, differ by more than rounding, or vllm in a
    later step by five times as much as then: stop, or say so and leave it to the importance correction."""


class ValidationSet(Section):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    """Unique short name of the set."""
    data: DataSettings
    """Where its rows come from."""


class BenchmarkSet(Section):
    name: BenchmarkName
    """A benchmark that `mmcorl eval` knows, such as mathvista; graded by its rules."""
    source: str | None = None
    """A local copy in the official schema; by default the hub."""
    limit: int | None = Field(default=None, ge=1)
    """Use only the first N problems."""


class ValidationSettings(Section):
    benchmarks: tuple[BenchmarkSet, ...] = ()
    """Benchmarks evaluated along with the sets."""
    sets: tuple[ValidationSet, ...] = ()
    """Held-out sets; accuracy needs answers, agreement does not."""
    hold_out: float = Field(default=0.1, ge=0, lt=1)
    """Share of the training rows that is kept out of training and evaluated where no `sets` and no `benchmarks` are
    named, so that agreement is always validated: at least 5 rows, at most 200, none of fewer than 20. 0 trains on
    all. Rows are drawn one by one, so that a picture with several questions can be on both sides: name `sets` of other
    pictures where that matters."""
    every: Resumable[int] = Field(default=50, ge=1)
    """Steps between evaluations; there is always one before the first step and one after the last."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Longest greedy completion; by default `sampling.max_new_tokens`."""

    @model_validator(mode="wrap")
    @classmethod
    def _sets_hold_nothing_out(cls, raw: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        named = isinstance(raw, Mapping) and (raw.get("sets") or raw.get("benchmarks"))
        return _filled({"hold_out": 0.0}, raw, read) if named else read(raw)

    @model_validator(mode="after")
    def _hold_out_or_sets(self) -> Self:
        if self.hold_out and (self.sets or self.benchmarks):
            raise ValueError(
                f"hold_out is {self.hold_out:g}, but rows are held out only where sets and benchmarks are empty: leave "
                "it out, or hold rows out with data.train.hold_out"
            )
        return self


class CheckpointSettings(Section):
    every: int = Field(default=50, ge=1)
    """Steps between checkpoints of all agents; there is always one after the last step."""
    keep_last: int = Field(default=2, ge=1)
    """Newest checkpoints kept, besides the best by validation and the best by agreement."""
    best: bool = True
    """Also checkpoint whenever an evaluation is the best so far, by accuracy or (label-free) by agreement."""


def _one_or_several(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


RowId = Annotated[str, BeforeValidator(_as_text, str | float)]
"""The id of a row; where data have none, its number."""


class LoggingSettings(Section):
    trackers: Annotated[
        tuple[TrackerName, ...], BeforeValidator(_one_or_several, TrackerName | tuple[TrackerName, ...])
    ] = ()
    """Trackers besides TensorBoard, which is always written: one or several of `wandb`, `trackio`, `mlflow`, `swanlab`,
    `comet_ml` and `aim`, each with its own package. See docs/sharing.md."""
    gallery: int = Field(default=4, ge=0)
    """Prompts per evaluation step kept with images for the report, those where agents disagree first."""
    probes: Resumable[
        Annotated[
            Annotated[int, Field(ge=0)] | tuple[RowId, ...],
            BeforeValidator(_one_or_several, int | str | tuple[RowId, ...]),
        ]
    ] = 4
    """Fixed prompts that every agent answers `batch.completions` times (with episodes at least 8) at each evaluation,
    to follow its votes over time: how many, chosen from the validation sets, or from the training data where there are
    none; or which, as a list of row ids such as `[dots-200, bar-202]`, of a validation set, else of the training data.
    SET/ID and train/ID say which of several rows with one id."""
    alarms: Literal["warn", "stop", "off"] = "warn"
    """What to do at signs of collapse (`mmcorl.run.diagnosis`), none of which needs a known answer: say so once, or
    checkpoint and stop."""


class ProfileSettings(Section):
    steps: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] = (3, 5)
    """First and last step, counted from where this start of the run begins. The parts of an agent's work are timed in
    all of them but the last, whose operators are traced: that slows it down."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.steps[0] > self.steps[1]:
            raise ValueError(f"steps is {list(self.steps)}, but the first may not come after the last: swap them")
        return self


class DataSection(Section):
    train: DataSettings
    """Training prompts; answers in them are diagnostics, except with `supervision.kind: gold`."""
    also: tuple[DataSettings, ...] = ()
    """More training data: their rows and those of `train` are shuffled together by `data_seed`. Each set has its own
    `limit` and `hold_out`; what happens to rows that cannot be used is set in `train` for all. Ids become SET/ID."""
    max_prompt_tokens: int = Field(default=3072, ge=1)
    """Longest prompt in tokens, image tokens included; `train.on_bad_row` says what happens to longer ones."""

    @model_validator(mode="after")
    def _one_rule_for_all(self) -> Self:
        for number, part in enumerate(self.also):
            for key in ("on_bad_row", "duplicates", "too_long", "min_rows"):
                if getattr(part, key) != type(part).model_fields[key].default:
                    raise ValueError(f"also[{number}].{key} is set, but train.{key} holds for all sets: leave it out")
            if part.views.keys() != self.train.views.keys():
                have, need = ", ".join(part.views) or "none", ", ".join(self.train.views) or "none"
                raise ValueError(f"also[{number}] has the views {have} and train {need}: give both the same")
        return self


class RaySettings(Section):
    address: str | None = None
    """A Ray cluster that runs already (`ray start`): `auto` for the one on this machine, or HOST:PORT. By default a
    cluster of this machine alone is started for the run, and ended with it."""
    without_token: bool = False
    """Join a cluster that asks for no token, where nobody else reaches its ports: whoever does runs code there."""
    call_timeout: float = Field(default=7200.0, ge=1)
    """Seconds that one call of a worker (a rollout, an update, an evaluation, a checkpoint) may take: a worker that
    hangs stops the run then, and its log shows where. One that dies, raises or is suspended does within seconds."""
    startup: float = Field(default=900.0, gt=0)
    """Most seconds until the cluster has given every agent its place and every worker has loaded its model."""
    collective_timeout: float = Field(default=600.0, ge=1)
    """Seconds that a worker waits for others of its agent in a collective (NCCL, gloo) before the run stops. Longer
    than the first worker needs to write a checkpoint, for which the others wait."""


CHECKS: list[Callable[[Config], Iterator[str]]] = []
"""Cross-field checks (`mmcorl.config.checks`), in order: each yields sentences that refuse a config."""


class Config(Section):
    """One run."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")
    """Name of the run, of letters, digits, `_`, `.`, `-`; the default run folder is runs/NAME."""
    notes: Resumable[tuple[str, ...]] = ()
    """Sentences that the report prints, such as what was planted in a demonstration."""
    seed: int = Field(default=0, ge=0)
    """Seed of sampling noise; each agent, step and rank derives its own from it."""
    data_seed: int = Field(default=0, ge=0)
    """Seed of the order of prompts, the same for every agent."""
    steps: int | None = Field(default=None, ge=1)
    """Training steps; give this or `epochs`."""
    epochs: float | None = Field(default=None, gt=0, le=10_000)
    """Passes over the training rows; give this or `steps`."""
    agents: tuple[AgentSettings, ...] = Field(min_length=1)
    """The cohort. With `supervision.kind: ring`, each agent is taught by the next and the last by the first; with
    `ring_previous` each by the one before it and the first by the last."""
    data: DataSection
    validation: ValidationSettings = ValidationSettings()
    supervision: SupervisionSettings = SupervisionSettings()
    answers: AnswerSettings = AnswerSettings()
    episode: EpisodeSettings | None = None
    """Agents talk about a problem instead of answering it alone; by default they do not."""
    reward: RewardSettings = RewardSettings()
    batch: BatchSettings = BatchSettings()
    prompt: PromptSettings = PromptSettings()
    vision: VisionConfig = VisionConfig()
    sampling: SamplingSettings = SamplingSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    training: TrainingSettings = TrainingSettings()
    engine: Resumable[EngineSettings] = EngineSettings()
    checkpoint: Resumable[CheckpointSettings] = CheckpointSettings()
    logging: Resumable[LoggingSettings] = LoggingSettings()
    launcher: Resumable[Literal["local", "ray"]] = "local"
    """`local` runs every agent in this process, one after the other; without GPUs in sight and with `threads: 1` each
    in a process of its own, at the same time. `ray` gives each agent workers of its own, one per GPU, on one machine
    or many, and lets agents work at the same time."""
    ray: Resumable[RaySettings] = RaySettings()
    """With `launcher: ray`."""
    profile: Resumable[ProfileSettings | None] = None
    """Find out where the time of a step goes: a table and a trace for each rank, in profile/ of the run folder. `true`
    takes the steps that it has by default. The run's numbers are those that it has without."""
    time_sliced: Resumable[bool] = False
    """Agents take turns on the same GPUs: between its calls an agent's weights and optimizer rest in CPU memory."""
    device: Resumable[str] = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """`auto` (a GPU when there is one), `cpu`, `cuda` or `cuda:N`."""
    threads: Resumable[int | None] = Field(default=None, ge=1, le=1024)
    """Torch threads on the CPU, of each agent; 1 is fastest for tiny models, by default torch decides."""

    @field_validator("profile", mode="before")
    @classmethod
    def _by_its_steps(cls, value: Any) -> Any:
        return {} if value is True else None if value is False else value

    @model_validator(mode="after")
    def _checked(self, info: ValidationInfo) -> Self:
        named = [self.supervision.kind, self.reward.kind, *(agent.adapter for agent in self.agents)]
        named += [self.answers.relation, self.objective.kind, self.engine.kind]
        checks = () if any(_unasked(name, info) for name in named) else CHECKS
        for mistake in (mistake for check in checks for mistake in check(self)):
            raise ValueError(mistake)
        return self
