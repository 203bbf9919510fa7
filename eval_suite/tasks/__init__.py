"""Benchmarks by name: `BENCHMARKS["mathvision"].load(...)` gives items, `.sub_scores(...)` the official tables.

One file each, its card on top. The text suites are files like the others instead of lm-evaluation-harness tasks:
one path for prompts, one grader with one policy, answers stored row by row and resumed there, options shuffled
by the question instead of a global generator, and no second environment (its `minerva_math` pins another antlr
than training needs, its code tasks download at import). What the harness would add, hundreds of other tasks and
log-likelihood scoring, nothing here uses. Its five-shot GSM8K number is not comparable with the zero-shot one
made here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from eval_suite.tasks.base import Benchmark, Loaded, SubScores
from mmcorl.errors import UserError

_HERE = "eval_suite.tasks"
_PLACES = {
    "mathvision": f"{_HERE}.mathvision:MATHVISION",
    "mathvision_testmini": f"{_HERE}.mathvision:MATHVISION_TESTMINI",
    "mathverse": f"{_HERE}.mathverse:MATHVERSE",
    "mathverse_text_only": f"{_HERE}.mathverse:MATHVERSE_TEXT_ONLY",
    "mathvista": f"{_HERE}.mathvista:MATHVISTA",
    "wemath": f"{_HERE}.wemath:WEMATH",
    "gsm8k": f"{_HERE}.gsm8k:GSM8K",
    "math500": f"{_HERE}.math500:MATH500",
    "amc": f"{_HERE}.amc:AMC",
    "minerva": f"{_HERE}.minerva:MINERVA",
    "gpqa_diamond": f"{_HERE}.gpqa:GPQA_DIAMOND",
    "gpqa_main": f"{_HERE}.gpqa:GPQA_MAIN",
    "mmlu": f"{_HERE}.mmlu:MMLU",
    "scibench": f"{_HERE}.scibench:SCIBENCH",
    "humaneval": f"{_HERE}.humaneval:HUMANEVAL",
    "humaneval_completion": f"{_HERE}.humaneval:HUMANEVAL_COMPLETION",
    "mbpp": f"{_HERE}.mbpp:MBPP",
    "mbpp_zero_shot": f"{_HERE}.mbpp:MBPP_ZERO_SHOT",
    "livecodebench": f"{_HERE}.livecodebench:LIVECODEBENCH",
}
"""Name to module and attribute: a new benchmark is a file, a line here and a test file."""


class _Table(Mapping[str, Benchmark]):
    """Imports a benchmark's module when it is first asked for; unknown names are refused in one sentence."""

    def __getitem__(self, name: str) -> Benchmark:
        if name not in _PLACES:
            raise UserError(f"benchmark {name!r} is unknown; the benchmarks are {', '.join(_PLACES)}")
        module, _, attribute = _PLACES[name].partition(":")
        benchmark: Benchmark = getattr(import_module(module), attribute)
        return benchmark

    def __contains__(self, name: object) -> bool:
        return name in _PLACES

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


BENCHMARKS: Mapping[str, Benchmark] = _Table()

__all__ = ["BENCHMARKS", "Benchmark", "Loaded", "SubScores"]
