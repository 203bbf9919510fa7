"""Protocols: what a paper's evaluation sets, under one name. Options that say otherwise win, and are recorded.

`paper-text` and `paper-vlm` follow the Co-RL paper's appendix on evaluation and, where it leaves something open, the
authors' release (DrStranded/Co-RL ff476f0, llm/eval and mllm/eval). `comas` is CoMAS' (`eval_suite.evaluation.comas`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

from eval_suite.benchmarks.tasks import BENCHMARKS
from eval_suite.metrics.aggregate import default_aggregation, parse_aggregation
from eval_suite.options import EvalOptions, GradingOptions, ProtocolName
from mmcorl.errors import UserError

AnyOptions = TypeVar("AnyOptions", bound=GradingOptions)


@dataclass(frozen=True)
class Protocol:
    """Settings of one protocol; keys are fields of `EvalOptions`."""

    settings: Mapping[str, Any]
    """For every benchmark."""
    untrained: Mapping[str, Any] = field(default_factory=dict)
    """Instead, for a checkpoint that does not say how it was trained: a base model."""
    by_benchmark: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Instead, for one benchmark."""
    forms: Mapping[str, str] = field(default_factory=dict)
    """By benchmark, the form in which it is asked."""
    continued: Mapping[str, str] = field(default_factory=dict)
    """The same for a model that is asked without a chat template."""
    groups: tuple[Literal["pictures", "text", "code"], ...] = ("text", "code")
    """Kinds of benchmarks that it is for."""
    judge_end: int = 0
    """Characters of a response's end that a judge reads."""

    def settings_for(self, benchmark: str, trained: bool) -> dict[str, Any]:
        """Return the settings for one benchmark, or for rows of one's own."""
        return {**self.settings, **({} if trained else self.untrained), **self.by_benchmark.get(benchmark, {})}


_PICTURES = "mathvision", "mathvision_testmini", "mathverse", "mathvista", "wemath"
PROTOCOLS: Mapping[ProtocolName, Protocol] = {
    "paper-text": Protocol(
        {
            "style": "paper_text",
            "chat_template": "on",
            "samples": 1,
            "temperature": 0.6,
            "top_p": 0.95,
            "max_new_tokens": 3072,
        },
        untrained={"chat_template": "off"},
        # The mean of avg@8 over three seeds is the mean of 24 responses. LiveCodeBench has its harness's defaults.
        by_benchmark={"amc_release": {"samples": 24}, "livecodebench": {"temperature": 0.2, "max_new_tokens": 2000}},
        forms={
            "amc": "amc_release",
            "gsm8k": "gsm8k_five_turns",
            "gpqa_diamond": "gpqa_diamond_boxed",
            "humaneval": "humaneval_instruct",
            "mbpp": "mbpp_instruct",
        },
        continued={"gsm8k": "gsm8k_five_shot", "humaneval": "humaneval_completion", "mbpp": "mbpp"},
    ),
    "paper-vlm": Protocol(
        {"style": "as-trained", "chat_template": "on", "samples": 1, "temperature": 0.0, "max_new_tokens": 16384},
        untrained={"style": "paper_boxed"},
        forms={name: f"{name}_release" for name in _PICTURES},
        groups=("pictures",),
        judge_end=6000,
    ),
    "comas": Protocol(
        # `top_p` is the paper's, as CoMAS names none; `max_new_tokens` bounds a draft and the sixth call.
        {"samples": 5, "temperature": 0.7, "top_p": 0.95, "max_new_tokens": 2048},
        forms={"mbpp": "mbpp_zero_shot"},
    ),
}
assert set(PROTOCOLS) == set(get_args(ProtocolName))


def under_protocol(options: EvalOptions, benchmark: str, trained: bool) -> tuple[EvalOptions, list[str]]:
    """Return the options for one benchmark, those of the protocol filled in, and where the given ones depart from it.

    `trained`: whether the checkpoint, or the one that it is asked like, says how it was trained.
    """
    if options.protocol is None:
        return options, []
    changes: dict[str, Any] = {}
    departures = []
    for name, value in PROTOCOLS[options.protocol].settings_for(benchmark, trained).items():
        given = getattr(options, name)
        if name == "style" and options.instruction is not None:
            departures.append(f"instruction {options.instruction!r} instead of style {value}")
        elif given is None:
            changes[name] = value
        elif given != value:
            departures.append(f"{name} {given} instead of {value}")
    if options.system is not None:
        departures.append(f"system message {options.system!r} instead of the style's")
    return EvalOptions.build(options, changes), departures


def forms_of(options: EvalOptions, sources: Mapping[str, str | None], trained: bool) -> dict[str, str | None]:
    """Return the benchmarks in the forms in which the protocol asks them, with their sources.

    Raises:
        UserError: a benchmark that the protocol is not for, or one that is named in two forms.
    """
    if options.protocol is None:
        return dict(sources)
    protocol = PROTOCOLS[options.protocol]
    formed: dict[str, str | None] = {}
    for name, source in sources.items():
        if name in BENCHMARKS and BENCHMARKS[name].group not in protocol.groups:
            other = "paper-vlm" if BENCHMARKS[name].group == "pictures" else "paper-text"
            raise UserError(f"protocol={options.protocol} is not for {name}: evaluate it with protocol={other}")
        each, _ = under_protocol(options, name, trained)
        forms = {**protocol.forms, **(protocol.continued if each.chat_template == "off" else {})}
        form = forms.get(name, name)
        if form in formed:
            raise UserError(f"{form} is named twice, once as {name}: leave one of them out")
        formed[form] = source
    return formed


def with_judge_end(options: AnyOptions, protocol: ProtocolName | None) -> AnyOptions:
    """Let a judge read what the protocol shows it, unless the options say how much or name another format."""
    if protocol is None or options.judge is None or {"judge_end", "judge_format"} & options.model_fields_set:
        return options
    return type(options).build(options, {"judge_end": PROTOCOLS[protocol].judge_end})


def aggregations_of(requested: str | None, samples: Mapping[str, int]) -> dict[str, str]:
    """Return the requested aggregation, else the benchmark's own for that many samples, else pass@1 or avg@k."""
    aggregations = {}
    for name, count in samples.items():
        official = name in BENCHMARKS and BENCHMARKS[name].samples == count
        usual = BENCHMARKS[name].aggregation if official else default_aggregation(count)
        aggregations[name] = requested or usual
        parse_aggregation(aggregations[name], count)  # refused before work starts
    return aggregations
