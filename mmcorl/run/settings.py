"""Settings of evaluations during a run, of its checkpoints and of what it logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ModelWrapValidatorHandler, model_validator

from mmcorl.data.settings import DataSettings
from mmcorl.section import Resumable, Section, filled
from mmcorl.system.user_code import importable

BenchmarkName = Annotated[
    str, AfterValidator(lambda name, info: importable(name) if ":" in name and not info.context else name)
]


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
        return filled({"hold_out": 0.0}, raw, read) if named else read(raw)

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


TrackerName = Literal["wandb", "trackio", "mlflow", "swanlab", "comet_ml", "aim"]


def one_or_several(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


RowId = Annotated[str, BeforeValidator(_as_text, str | float)]
"""The id of a row; where data have none, its number."""


class LoggingSettings(Section):
    trackers: Annotated[
        tuple[TrackerName, ...], BeforeValidator(one_or_several, TrackerName | tuple[TrackerName, ...])
    ] = ()
    """Trackers besides TensorBoard, which is always written: one or several of `wandb`, `trackio`, `mlflow`, `swanlab`,
    `comet_ml` and `aim`, each with its own package. See docs/sharing.md."""
    gallery: int = Field(default=4, ge=0)
    """Prompts per evaluation step kept with images for the report, those where agents disagree first."""
    probes: Resumable[
        Annotated[
            Annotated[int, Field(ge=0)] | tuple[RowId, ...],
            BeforeValidator(one_or_several, int | str | tuple[RowId, ...]),
        ]
    ] = 4
    """Fixed prompts that every agent answers `batch.completions` times (with episodes at least 8) at each evaluation,
    to follow its votes over time: how many, chosen from the validation sets, or from the training data where there are
    none; or which, as a list of row ids such as `[dots-200, bar-202]`, of a validation set, else of the training data.
    SET/ID and train/ID say which of several rows with one id."""
    alarms: Literal["warn", "stop", "off"] = "warn"
    """What to do at signs of collapse (`mmcorl.run.diagnosis`), none of which needs a known answer: say so once, or
    checkpoint and stop."""
