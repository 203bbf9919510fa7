"""Options of the suite's functions: typed models whose fields the command line turns into arguments.

Every function takes either such a model or its fields as keywords: `evaluate(model, names, out, samples=8)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mmcorl.answers.settings import RelationName
from mmcorl.config.errors import sentence
from mmcorl.data.columns import Corners
from mmcorl.engines.settings import EngineName
from mmcorl.errors import UserError
from mmcorl.grading.items import GradedReading, McqPolicy
from mmcorl.policy.settings import AdapterName
from mmcorl.types import PromptStyle
from model_adapters.coordinates import Convention

DEFAULT_POLICY: McqPolicy = "letter_or_value"

ProtocolName = Literal["paper-text", "paper-vlm", "comas"]


class Options(BaseModel):
    """Immutable options; an unknown name or a value of the wrong type is refused in one sentence."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @classmethod
    def build(cls, options: Self | None = None, changes: Mapping[str, Any] | None = None) -> Self:
        """Return `options` (or the defaults) with `changes` applied.

        Raises:
            UserError: a change that is no option, or a value that does not fit.
        """
        if options is not None and not changes:
            return options
        values = {} if options is None else options.model_dump(exclude_unset=True)
        values |= changes or {}
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise UserError(sentence(error, values, cls)) from error


class CodeOptions(Options):
    """Permission to run programs written by a model."""

    run_code: bool = False
    """allow running code that a model wrote, in a sandbox"""


class JudgeOptions(Options):
    """A judge, and what it is asked."""

    judge: str | None = None
    """LLM judge for answers the rules reject: an OpenAI-compatible endpoint (URL), or vllm[:MODEL] in this process"""
    judge_model: str | None = None
    """name of the judge (default: the format's, Qwen/Qwen2.5-32B-Instruct for ours, or the MODEL)"""
    judge_format: str | None = None
    """what the judge is asked and how its reply is read: mmcorl (the default); a published verifier's with the file of
    its prompt, compassverifier=FILE, compassverifier-cot=FILE, xverify=FILE or general-verifier=FILE; or your own,
    file.py:name"""
    judge_key_env: str | None = None
    """environment variable that holds an endpoint's key"""
    judge_gpus: int | None = None
    """GPUs for a judge in this process (default: 1)"""
    judge_set: tuple[str, ...] = ()
    """NAME=VALUE: concurrency, timeout (seconds), max_tokens, ... of an endpoint, or extra.NAME for a request field"""
    judge_end: int = 0
    """number of characters from the end of each response that the judge reads besides the extracted answer (formats
    that show the whole response: instead of all of it)"""


class GradingOptions(CodeOptions, JudgeOptions):
    """Grading and scoring of responses."""

    mcq_policy: McqPolicy | None = None
    """credit a choice by its letter or value, or only by its letter as older graders do (default: letter_or_value; a
    folder that is re-graded keeps its policy)"""
    reading: GradedReading | None = None
    """prose: read answers in sentences, too (`Answer: B`, `the answer is 5`, bold finals), and say so in every score
    (default: commitment, tags and boxes alone; a folder that is re-graded keeps its reading)"""
    judge_again: Literal["unclear", "all"] | None = None
    """re-query replies without a verdict, or all replies (failed requests are always retried)"""
    aggregation: str | None = None
    """pass@K, avg@K or maj@K (default: what the benchmark reports)"""


class RelationOptions(Options):
    """Comparison of answers to rows of one's own that are not mathematics."""

    relation: RelationName | None = None
    """how answers to your own rows are compared, as `answers.relation` in a config: text, edit, number, box, ...
    (default: mathematics)"""
    threshold: float | None = None
    """smallest similarity that counts as right (default: the relation's)"""


class CheckpointOptions(Options):
    """Loading and prompting of a checkpoint."""

    style: Literal[PromptStyle, "as-trained"] | None = None
    """instruction after each question; as-trained: the training run's (default: the benchmark's, for trained and other
    checkpoints alike; benchmarks that ask for a form themselves, such as programs, keep theirs)"""
    instruction: str | None = None
    """TEXT: your own instruction in place of a style, used verbatim"""
    system: str | None = None
    """TEXT: system message, "" for none (default: the style's)"""
    chat_template: Literal["on", "off"] | None = None
    """off: the question alone, for base models (default: as trained, else on)"""
    vision: tuple[str, ...] = ()
    """KEY=VALUE: an image setting, as under `vision` in a config, such as tiles=12 (default: as trained)"""
    like: str | None = None
    """DIR: take image settings, template arguments and as-trained from the training run of this checkpoint (default:
    MODEL); evaluates a base model under the conditions of the model trained from it"""
    coordinates: Convention | None = None
    """coordinate convention in which the model is asked for points and boxes (default: its family's)"""
    seed: int = 0
    """seed of the sampling noise"""
    adapter: AdapterName = None
    """FILE.py:CLASS: an adapter from outside, or PKG.MODULE:CLASS (default: as trained, else by model_type)"""
    device: str = "auto"
    """cpu or cuda:N (default: a GPU where there is one)"""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """arithmetic"""
    engine: EngineName = "transformers"
    """sampling engine; vllm is many times faster on a GPU"""


class EvalOptions(CheckpointOptions, RelationOptions, GradingOptions):
    """Options of `evaluate` and `evaluate_comas`."""

    protocol: ProtocolName | None = None
    """a paper's evaluation protocol: prompts, benchmark variants, sampling, averages; other options override it and
    are recorded. paper-text, paper-vlm: the Co-RL paper's; comas: five drafts and a sixth call that reads them, on the
    subsets of CoMAS' tables; reports pass@1, avg@5, maj@5, pass@5 and the sixth call"""
    samples: int | None = None
    """responses per problem (default: the protocol's, else what the benchmark reports)"""
    temperature: float | None = None
    """0 is greedy (default: the protocol's, else 0 for one sample and 0.6 for several)"""
    top_p: float | None = None
    """nucleus mass (default: the protocol's, else 1)"""
    max_new_tokens: int | None = None
    """token budget of a response (default: the protocol's, else 16384; 256 for natural: and synthetic:)"""
    subset: str | None = None
    """N problems of each benchmark, drawn by a seed; `all` (the default but for comas)"""
    subset_seed: int = 0
    """seed of that draw"""
    limit: int | None = Field(None, ge=1)
    """only the first N problems of each benchmark"""
    data_set: tuple[str, ...] = ()
    """KEY=VALUE: a setting of rows of your own, as under `data.train` in a config, such as columns.answer=gold"""
    blind: bool = False
    """ask again with every picture hidden, replaced by grey of its size, into OUT/blind, and compare the two"""


class GradeOptions(RelationOptions, GradingOptions):
    """Options of `grade_file`."""

    benchmark: str | None = None
    """NAME[=PATH] of the benchmark with the reference answers, or natural:KIND or synthetic:KIND, if the file has
    none"""
    coordinates: Convention | None = None
    """coordinate convention of points and boxes, in responses and reference answers of the file (benchmarks know
    theirs). Pixels refer to the image size in columns `width` and `height`, or to the image of the benchmark"""
    corners: Corners | None = None
    """meaning of the four numbers of a reference box: left, top, right, bottom (the default), or left, top, width,
    height, as `places.corners` of data"""
    out: Path | None = None
    """folder of the results (default: r.graded beside r.jsonl)"""


class JudgeCheckOptions(JudgeOptions):
    """Options of `judge_check`."""

    out: Path | None = None
    """folder of the judges that were checked (default: rows.judges beside rows.jsonl)"""
    beside: tuple[Path, ...] = ()
    """DIR: an evaluation with this judge, which shows the check beside its scores"""


class PoolOptions(CodeOptions):
    """Options of `pool` and `match_teams`."""

    out: Path | None = None
    """folder in which checkpoints are evaluated first: OUT/TEAM/AGENT"""
    aggregation: str | None = None
    """maj@K or pass@K (default: maj over all pooled samples); `pool` only"""
    asked_differently: bool = False
    """pool or compare even if prompts or sampling differ"""
    votes: int | None = None
    """responses that each agent contributes to a pool (default: all); `match_teams` only"""


class DiversityOptions(CheckpointOptions, RelationOptions):
    """Origin of the responses of several models; options of `diversity`."""

    data: str | None = None
    """problems to sample on: a source as in a config, or CONFIG.yaml for its own"""
    data_set: tuple[str, ...] = ()
    """KEY=VALUE: a setting of `data`, such as columns.answer=gold"""
    benchmark: str | None = None
    """NAME[=PATH]: problems to sample on, or reference answers for files without them"""
    out: Path | None = None
    """folder of samples, tables and page; an interrupted job resumes there"""
    problems: int = 500
    """number of problems (the paper: 500)"""
    problems_seed: int = 0
    """seed for drawing them"""
    repeat: int = 1
    """samples per problem of each sampled model"""
    temperature: float = 0.8
    """sampling temperature (the paper: 0.8)"""
    top_p: float = 1.0
    """nucleus mass"""
    max_new_tokens: int = 3072
    """token budget of a response, the paper's for text problems"""
    family: tuple[str, ...] = ()
    """NAME=FAMILY: lineage of a source (default: the leading letters of its config's model_type)"""
    shared: bool = False
    """use only the problems that all sources answered"""


class PairOptions(DiversityOptions):
    """Options of `pair`."""

    label_free: bool = False
    """use no reference answers, only agreement between three or more models"""
