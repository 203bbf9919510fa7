"""Every setting of a run, with its meaning beside it, and the sentences that refuse mistakes.

A run is one YAML file plus `key.sub=value` overrides. `load` returns a frozen `Config`; anything unknown,
misspelt or impossible raises `Refused` before a model is touched. No torch here: `mmcorl --help` and
config errors answer at once.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from mmcorl.data.settings import DataSettings
from mmcorl.errors import Refused
from mmcorl.refusals import sentence

RESERVED_NAMES = ("gold", "commit")
"""Not for agents: `gold` is the teacher in votes.jsonl, COMMIT a file beside the agents' folders."""


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values do not change, docstrings are descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        # pydantic reads true as 1.
        annotation = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and {int, float} & {annotation, *get_args(annotation)}:
            raise ValueError(f"{str(value).lower()} is not a number: write one")
        return value


class AgentSettings(Section):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    """Unique short name, of letters, digits, `_`, `.`, `-`; names folders, metrics and plots."""
    model: str
    """Checkpoint folder, hub id, or `zoo:NAME` / `zoo:NAME@SEED` (see `mmcorl zoo`)."""
    adapter: str | None = None
    """`pkg.module:Class` of a family from outside; by default chosen from config.json."""
    view: str = "original"
    """Which wording of the questions this agent reads: `original` or a view of the training data. Data without
    views, such as a validation set, are read in their original wording."""
    template: dict[str, Any] = Field(default_factory=dict)
    """Arguments of this agent's chat template, such as {enable_thinking: false} for Qwen3; unknown ones are refused."""
    lr: float | None = Field(default=None, gt=0)
    """Learning rate of this agent; by default `optimizer.lr`."""
    ranks: int = Field(default=1, ge=1)
    """Workers of this agent, one per GPU; above 1 with `launcher: ray` only. They share out each batch in order, the
    first ones taking one prompt more where it does not divide evenly, so there are at most `batch.prompts`."""


class BatchSettings(Section):
    prompts: int = Field(default=8, ge=1)
    """B: prompts per step, the same rows for every agent."""
    completions: int = Field(default=8, ge=2)
    """K: completions per prompt and agent; at least 2, one completion has nothing to be compared with."""


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
    style: Literal["answer_tags", "boxed", "plain"] = "answer_tags"
    """Instruction after the question: think/answer tags, a LaTeX box, or none."""
    system: str | None = None
    """System message; by default none."""


class VisionConfig(Section):
    max_side: int = Field(default=1024, ge=28)
    """Longest image side in pixels; larger images are scaled down."""
    tiles: int = Field(default=1, ge=1, le=64)
    """Most tiles per image (InternVL); 1 switches tiling off. One setting for training and evaluation."""
    min_pixels: int | None = Field(default=None, ge=28 * 28)
    """Lower pixel budget per image (Qwen); by default the checkpoint's."""
    max_pixels: int | None = Field(default=None, ge=28 * 28)
    """Upper pixel budget per image (Qwen); by default the checkpoint's."""


class SupervisionSettings(Section):
    kind: Literal["ring", "self", "gold"] = "ring"
    """Who teaches whom: the next agent (Co-RL), oneself (TTRL, MM-UPT), or the known answers (GT-Reward)."""
    tie: Literal["first_seen", "drop", "lexicographic"] = "first_seen"
    """Which answer wins a tied vote: the first sampled (the paper), none, or the first in string order."""
    min_votes: int = Field(default=1, ge=1)
    """Fewest votes a winner needs; below it the group has no pseudo-label and earns nothing."""
    min_share: float = Field(default=0.0, ge=0, le=1)
    """Smallest share of the parsed votes a winner needs."""


class ObjectiveSettings(Section):
    aggregation: Literal["sequence", "token", "dr_grpo"] = "sequence"
    """Loss over the whole optimizer batch: mean of per-completion means (the paper's equation), mean over
    tokens (what TRL's `bnpo` intends), or sum over a constant length (Dr. GRPO)."""
    advantage_std: Literal["unbiased", "population", "none"] = "unbiased"
    """Divisor of the centred rewards: K-1 standard deviation (TRL), K (the theory), or none (Dr. GRPO)."""
    advantage_eps: float = Field(default=1e-4, ge=0)
    """Added to that divisor."""
    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """Ratios below 1 - clip_low are clipped."""
    clip_high: float = Field(default=0.2, ge=0)
    """Ratios above 1 + clip_high are clipped."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL penalty to the starting weights; 0 (the paper) needs no reference model."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of that KL."""
    importance_correction: Literal[
        "auto", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "off"
    ] = "auto"
    """Weight for the drift of the engine, exp(log pi_train - log pi_engine) per token or multiplied over a completion,
    cut at the cap or set to 0 above it; `auto` asks the model family: token_truncate or off."""
    importance_cap: float = Field(default=3.0, gt=0)
    """Bound of that weight."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer steps per pass over a rollout batch; whole prompts per minibatch."""
    passes: int = Field(default=1, ge=1)
    """Passes over each rollout batch; with 1 pass and 1 minibatch the update is exactly on-policy."""


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


class LoraSettings(Section):
    rank: int = Field(default=16, ge=1)
    """Rank of the adapters."""
    alpha: int = Field(default=32, gt=0)
    """Scale: the update is multiplied by alpha / rank."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Layers that get an adapter, as peft names them."""


class TrainingSettings(Section):
    dtype: Literal["fp32", "bf16"] = "bf16"
    """Arithmetic of forward and backward; master weights and log-probabilities stay in fp32."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Attention implementation of transformers."""
    tokens_per_microbatch: int = Field(default=16384, ge=1)
    """Most tokens (padding included) of one forward and backward; changes memory, not the update."""
    gradient_checkpointing: bool = False
    """Recompute activations in backward: less memory, about a third more arithmetic."""
    freeze_vision: bool = False
    """Keep the vision tower fixed. Nothing is ever frozen without this setting."""
    lora: LoraSettings | None = None
    """Train low-rank adapters instead of all weights."""
    sharding: Literal["none", "zero2", "zero3", "fsdp2"] = "none"
    """What the ranks of an agent divide among themselves: nothing; gradients and optimizer state (`zero2`); or weights
    too (`zero3`, DeepSpeed, and `fsdp2`, torch). The update is the same. With weights divided, `engine.kind:
    transformers` samples from a whole copy on every rank, which small models alone leave room for."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """What lies in CPU memory between uses: the optimizer state (ZeRO), or the weights too (`zero3`, `fsdp2`)."""

    @model_validator(mode="after")
    def _offload_fits(self) -> Self:
        can = {"none": (), "zero2": ("optimizer",), "zero3": ("optimizer", "all"), "fsdp2": ("all",)}[self.sharding]
        if self.offload != "none" and self.offload not in can:
            way = f"use {can[-1]} or none" if can else "choose a sharding that moves things, such as zero3, or none"
            raise ValueError(f"offload is {self.offload!r} but sharding {self.sharding!r} cannot do that: {way}")
        return self


class EngineSettings(Section):
    kind: Literal["transformers", "vllm"] = "transformers"
    """What samples: `transformers` shares the trained weights; `vllm` holds its own in each rank's process, as large
    models need, and is given the new ones after every update."""
    max_rows: int = Field(default=256, ge=1)
    """Most completions generated at once; changes memory, speed and, with transformers, which samples a seed draws."""
    max_tokens: int = Field(default=2**18, ge=1)
    """Most tokens (prompt, completion and padding) in the KV cache at once; changes the same things. For vllm see
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
    parity: Literal["stop", "warn"] = "stop"
    """What to do where vllm and trainer, compared before the first step, differ by more than rounding: stop, or say so
    and leave it to the importance correction."""


class ValidationSet(Section):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    """Unique short name of the set."""
    data: DataSettings
    """Where its rows come from."""


class BenchmarkSet(Section):
    name: str
    """A benchmark that `mmcorl eval` knows, such as mathvista; graded by its rules."""
    source: str | None = None
    """A local copy in the official schema; by default the hub."""
    limit: int | None = Field(default=None, ge=1)
    """Only the first so many problems."""


class ValidationSettings(Section):
    benchmarks: tuple[BenchmarkSet, ...] = ()
    """Benchmarks evaluated along with the sets."""
    sets: tuple[ValidationSet, ...] = ()
    """Held-out sets; accuracy needs answers, agreement does not."""
    every: int = Field(default=50, ge=1)
    """Steps between evaluations; there is always one before the first step and one after the last."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Longest greedy completion; by default `sampling.max_new_tokens`."""


class CheckpointSettings(Section):
    every: int = Field(default=50, ge=1)
    """Steps between checkpoints of all agents; there is always one after the last step."""
    keep_last: int = Field(default=2, ge=1)
    """Newest checkpoints kept, besides the best by validation and the best by agreement."""
    best: bool = True
    """Also checkpoint whenever an evaluation is the best so far, by accuracy or (label-free) by agreement."""


class LoggingSettings(Section):
    trackers: tuple[Literal["wandb", "trackio"], ...] = ()
    """Trackers besides TensorBoard, which is always written."""
    gallery: int = Field(default=4, ge=0)
    """Prompts per evaluation step kept with images for the report, those where agents disagree first."""


class DataSection(Section):
    train: DataSettings
    """Training prompts; answers in them are diagnostics, except with `supervision.kind: gold`."""
    max_prompt_tokens: int = Field(default=3072, ge=1)
    """Longest prompt in tokens, image tokens included; `train.on_bad_row` says what happens to longer ones."""


class RaySettings(Section):
    address: str | None = None
    """A Ray cluster that runs already (`ray start`): `auto` for the one on this machine, or HOST:PORT. By default a
    cluster of this machine alone is started for the run, and ended with it."""
    hung_after: float = Field(default=4.0, ge=2)
    """Seconds after which the run stops because a worker's process is suspended, its machine does not answer, or it
    stands still in a call: it uses no processor, waits for no disk and for no other worker of its agent. Waiting for
    others counts, too, where all workers of an agent do."""
    startup: float = Field(default=900.0, gt=0)
    """Most seconds until the cluster has given every agent its place and every worker has loaded its model."""


class Config(Section):
    """One run."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")
    """Name of the run, of letters, digits, `_`, `.`, `-`; the default run folder is runs/NAME."""
    notes: tuple[str, ...] = ()
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
    """The cohort. With `supervision.kind: ring`, each agent is taught by the next and the last by the first."""
    data: DataSection
    validation: ValidationSettings = ValidationSettings()
    supervision: SupervisionSettings = SupervisionSettings()
    reward: Literal["match"] = "match"
    """Reward: 1 where a completion's answer equals the pseudo-label, else 0."""
    batch: BatchSettings = BatchSettings()
    prompt: PromptSettings = PromptSettings()
    vision: VisionConfig = VisionConfig()
    sampling: SamplingSettings = SamplingSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    training: TrainingSettings = TrainingSettings()
    engine: EngineSettings = EngineSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    logging: LoggingSettings = LoggingSettings()
    launcher: Literal["local", "ray"] = "local"
    """`local` runs every agent in this process, one after the other; `ray` gives each agent workers of its own, one
    per GPU, on one machine or many, and lets agents work at the same time."""
    ray: RaySettings = RaySettings()
    """With `launcher: ray`."""
    time_sliced: bool = False
    """Agents take turns on the same GPUs: between its calls an agent's weights and optimizer rest in CPU memory."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """`auto` (a GPU when there is one), `cpu`, `cuda` or `cuda:N`."""
    threads: int | None = Field(default=None, ge=1)
    """Torch threads on the CPU; 1 is fastest for tiny models, by default torch decides."""

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        names = [agent.name for agent in self.agents]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two agents are called {twice[0]!r}: names must be unique, rename one")
        taken = [name for name in names if name.lower() in RESERVED_NAMES]
        if taken:
            raise ValueError(f"an agent may not be called {taken[0]!r}, which means something else in a run: rename it")
        self._placed()
        if self.supervision.kind == "ring" and len(self.agents) < 2:
            raise ValueError(
                "supervision.kind is 'ring' with one agent: a ring needs a peer, "
                "add an agent or use supervision.kind=self"
            )
        if self.steps is None and self.epochs is None:
            raise ValueError("neither steps nor epochs says how long the run is: give one, for example steps: 100")
        if self.steps is not None and self.epochs is not None:
            raise ValueError(
                f"steps is {self.steps} and epochs is {self.epochs:g}, but a run has one length: remove one"
            )
        if self.objective.minibatches > self.batch.prompts:
            raise ValueError(
                f"objective.minibatches is {self.objective.minibatches} but a batch has {self.batch.prompts} "
                "prompts: use at most one minibatch per prompt"
            )
        views = {"original", *self.data.train.views}
        for agent in self.agents:
            if agent.view not in views:
                raise ValueError(
                    f"agent {agent.name!r} reads view {agent.view!r}, but the training data have "
                    f"{', '.join(sorted(views))}: add it under data.train.views"
                )
        filtered = self.sampling.top_p < 1 or self.sampling.top_k > 0
        if filtered and self.objective.importance_correction != "off":
            raise ValueError(
                f"sampling.top_p={self.sampling.top_p}, top_k={self.sampling.top_k} cut the distribution, which makes "
                "importance ratios meaningless: use top_p=1 and top_k=0, or objective.importance_correction=off"
            )
        if self.supervision.min_votes > self.batch.completions:
            raise ValueError(
                f"supervision.min_votes is {self.supervision.min_votes} but a group has {self.batch.completions} "
                "completions, so no group could ever get a label: lower it"
            )
        if self.objective.kl_coef and self.objective.kl_estimator == "k1":
            raise ValueError(
                f"objective.kl_coef is {self.objective.kl_coef:g} with kl_estimator 'k1', whose gradient is zero on "
                "average, so that it would penalise nothing: use k3 or k2, or kl_coef=0"
            )
        low, high = self.vision.min_pixels, self.vision.max_pixels
        if low is not None and high is not None and low > high:
            raise ValueError(f"vision.min_pixels is {low}, above max_pixels {high}: lower it")
        sets = [part.name for part in self.validation.sets] + [part.name for part in self.validation.benchmarks]
        shared = sorted({name for name in sets if sets.count(name) > 1})
        if shared:
            raise ValueError(f"two validation sets are called {shared[0]!r}: names must be unique, rename one")
        if "train" in sets:
            raise ValueError("a validation set may not be called 'train', the name of the training data: rename it")
        return self

    def _placed(self) -> None:
        """Every rank of every agent gets a device and a share of the batch."""
        for agent in self.agents:
            if agent.ranks > 1 and self.launcher == "local":
                raise ValueError(
                    f"agent {agent.name!r} has ranks: {agent.ranks} but launcher 'local' runs one per agent, in this "
                    "process: use launcher=ray, or ranks: 1"
                )
            if agent.ranks > self.batch.prompts:
                raise ValueError(
                    f"agent {agent.name!r} has ranks: {agent.ranks} but a batch has {self.batch.prompts} prompts, and "
                    "every rank needs one at least: use fewer ranks or raise batch.prompts"
                )
        if self.time_sliced and self.training.sharding != "none":
            raise ValueError(
                f"time_sliced is true with training.sharding {self.training.sharding!r}, but only whole weights can "
                "rest in CPU memory: use training.sharding=none, or training.offload"
            )
        if self.launcher == "ray" and self.device.startswith("cuda:"):
            raise ValueError(
                f"device is {self.device!r} but with launcher 'ray' every worker is given its own GPU: use device=cuda"
            )


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file, apply `key.sub=value` overrides, validate.

    Raises Refused with one sentence on anything wrong.
    """
    path = Path(path)
    if path.is_dir():
        raise Refused(f"{str(path)!r} is a folder: give the config file in it, such as {str(path / 'config.yaml')!r}")
    if not path.is_file():
        raise Refused(f"there is no config file {str(path)!r}: see configs/ for examples to start from")
    try:
        raw = yaml.load(path.read_text(encoding="utf-8-sig"), _Loader)
    except yaml.YAMLError as error:
        raise Refused(f"{path} is not valid YAML: {_complaint(error)}") from error
    except UnicodeDecodeError as error:
        raise Refused(
            f"{path} is not text in UTF-8 ({error.reason} at byte {error.start}): save it as UTF-8"
        ) from error
    except OSError as error:
        raise Refused(f"{path} cannot be read ({error.strerror}): check its permissions") from error
    if not isinstance(raw, dict):
        holds = "nothing" if raw is None else f"a {type(raw).__name__}"
        raise Refused(f"{path} holds {holds} where `key: value` settings are needed: see configs/ for examples")
    for override in overrides:
        _override(raw, override)
    return parse(raw)


def parse(raw: dict[str, Any]) -> Config:
    """Validate a mapping; the first mistake becomes one sentence."""
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        raise Refused(sentence(error, raw, Config)) from error


def dump(config: Config) -> str:
    """The resolved config as YAML, every default written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=110)


def differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """`key: old -> new` for every leaf that differs between two resolved configs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}, key=str):
            yield from differences(old.get(key), new.get(key), f"{place}.{key}" if place else str(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from differences(before, after, f"{place}[{index}]")
    elif old != new:
        yield f"{place}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    shown = "none" if value is None else repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


class _Loader(yaml.SafeLoader):
    """YAML in which a key stands once, `1e-6` is a number, and `off` is the word.

    YAML 1.1 lets a later duplicate key win in silence, reads 1e-6 as text and on, off, yes and no as truth values.
    """


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            raise yaml.constructor.ConstructorError(None, None, "a list cannot be a key", key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return {
        loader.construct_object(key, deep=True): loader.construct_object(value, deep=True) for key, value in node.value
    }


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def _complaint(error: yaml.YAMLError) -> str:
    """Where and what, without the excerpts that YAML draws over several lines."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        where = f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}"
        return f"{error.problem} in {where}, mend that line"
    return " ".join(str(error).split())


def _override(raw: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise Refused(f"{text!r} is not an override: write key.sub=value, for example optimizer.lr=1e-5")
    try:
        parsed = yaml.load(value, _Loader)
    except yaml.YAMLError as error:
        raise Refused(f"the value of {text!r} is not valid YAML: {_complaint(error)}") from error
    node: Any = raw
    parts = re.sub(r"\[(\d+)\]", r".\1", key).split(".")
    while parts:
        place: Any
        if isinstance(node, list):
            place, parts = _item(node, parts, key)
        else:
            place, *parts = parts
        if not parts:
            node[place] = parsed
        elif isinstance(node, list):
            node = node[place]
        else:
            if not isinstance(node.get(place), dict | list):
                node[place] = {}
            node = node[place]


def _item(items: list[Any], parts: list[str], key: str) -> tuple[int, list[str]]:
    """Position in a list by number or by the `name` of an item (`agents.qwen.lr=...`), and the parts left.

    A name may hold dots.
    """
    names = [item.get("name") if isinstance(item, dict) else None for item in items]
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in names:
            return names.index(".".join(parts[:end])), parts[end:]
    if parts[0].isdigit() and int(parts[0]) < len(items):
        return int(parts[0]), parts[1:]
    known = ", ".join([*(name for name in names if name), *map(str, range(len(items)))])
    raise Refused(f"{key!r} names no entry of its list, which has {known}: correct {parts[0]!r}")
