"""What an agent's time buys: samples per second, and the share of the GPUs' arithmetic that the work needs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmcorl.types import Group

PEAK_TFLOPS = {
    "B200": 2250,
    "H200": 989,
    "H100 PCIe": 756,
    "H100": 989,
    "H800": 989,
    "A100": 312,
    "A800": 312,
    "L40S": 362,
    "L40": 181,
    "L4": 121,
    "A6000": 155,
    "A40": 150,
    "A10": 125,
    "4090": 165,
    "3090": 71,
    "MI300X": 1307,
}
"""Dense bf16 matrix arithmetic of a GPU in TFLOP/s, by what its name contains; the first match counts. From the
makers' data sheets, without sparsity."""


def peak_flops(device_name: str | None) -> float | None:
    """FLOP/s in bf16 of a GPU by its name; None for a CPU or a GPU that is not in the table."""
    for name, tflops in PEAK_TFLOPS.items():
        if device_name is not None and name in device_name:
            return tflops * 1e12
    return None


def step_flops(
    parameters: int,
    trainable: int,
    sampled: tuple[int, int],
    trained: tuple[int, int],
    *,
    passes: int = 1,
) -> float:
    """Floating-point operations that one step of one agent needs, whoever does them in whatever way.

    With N parameters of which T are trained: a forward pass costs 2 N per token, a backward pass 2 N for what is
    handed on and 2 T for the gradients. A prompt is read once per group and pass, its completions token by token.
    With T = N this is the usual 6 N per trained token. Attention over the context (small at a few thousand tokens),
    the vision tower's patches beyond the tokens they become, recomputed activations and passes of a reference model
    are left out, so the share of the peak is rather too low than too high.

    Args:
        sampled: prompt and completion tokens of the rollout.
        trained: the same of the groups that gave a gradient.
        passes: passes over the rollout batch.
    """
    return 2 * parameters * sum(sampled) + passes * (4 * parameters + 2 * trainable) * sum(trained)


class Meter:
    """Measures one agent: seconds by step and phase, told from outside, and the rates they make with the work done.

    Args:
        facts: of the agent: `parameters`, `trainable_parameters`.
        peak: FLOP/s of all its GPUs together; None without a known GPU.
        passes: passes over each rollout batch.
        all_groups: groups with equal rewards are trained too (they have a KL term).
    """

    def __init__(self, facts: Mapping[str, Any], peak: float | None = None, passes: int = 1, all_groups: bool = False):
        self.facts, self.peak, self.passes, self.all_groups = facts, peak, passes, all_groups
        self._seconds: dict[int, dict[str, float]] = {}
        self._prompt_tokens: dict[int, Mapping[str, int]] = {}

    @contextlib.contextmanager
    def timed(self, phase: str, step: int) -> Iterator[None]:
        """Add what happens inside to a phase of a step. Another thread may read other steps meanwhile."""
        start = time.perf_counter()
        yield
        seconds = self._seconds.setdefault(step, {})
        seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - start

    def prompts(self, step: int, tokens: Mapping[str, int]) -> None:
        """Tokens of each prompt of a step, by uid."""
        self._prompt_tokens[step] = tokens

    def take(self, step: int, groups: Sequence[Group], rewards: Mapping[str, Sequence[float]]) -> dict[str, Any]:
        """Rates of one finished step, for its line in timings.jsonl; what was measured of it is forgotten.

        `tokens_per_second` counts completion tokens over rollout and update together; divided by `rollout_share`
        it is the speed of sampling.
        """
        seconds, prompts = self._seconds.pop(step), self._prompt_tokens.pop(step)
        total = seconds["rollout"] + seconds["update"]
        tokens = {group.uid: sum(one.tokens for one in group.completions) for group in groups}
        trained = [uid for uid, values in rewards.items() if self.all_groups or len(set(values)) > 1]
        flops = step_flops(
            self.facts["parameters"],
            self.facts["trainable_parameters"],
            (sum(prompts.values()), sum(tokens.values())),
            (sum(prompts[uid] for uid in trained), sum(tokens[uid] for uid in trained)),
            passes=self.passes,
        )
        return {
            "rollout_seconds": round(seconds["rollout"], 4),
            "update_seconds": round(seconds["update"], 4),
            "prompts_per_second": len(groups) / total,
            "completions_per_second": sum(len(group.completions) for group in groups) / total,
            "tokens_per_second": sum(tokens.values()) / total,
            "rollout_share": seconds["rollout"] / total,
            "mfu": None if self.peak is None else flops / total / self.peak,
        }


def overall(timings: Sequence[Mapping[str, Any]], agent: str) -> dict[str, float | None]:
    """The rates of a whole run from the lines of timings.jsonl: those of its steps, weighted by their seconds.

    `busy_share` is the part of the run's time in which the agent itself worked: the rest it waited for peers,
    evaluations and checkpoints. Empty where no step was measured.
    """
    lines = [line["agents"][agent] for line in timings if agent in line.get("agents", {})]
    weights = [line["rollout_seconds"] + line["update_seconds"] for line in lines]
    total = sum(weights)
    if not total:
        return {}
    rates: dict[str, float | None] = {}
    for key in ("prompts_per_second", "completions_per_second", "tokens_per_second", "rollout_share", "mfu"):
        values = [line[key] for line in lines]
        known = all(value is not None for value in values)
        rates[key] = sum(v * w for v, w in zip(values, weights, strict=True)) / total if known else None
    elapsed = sum(line["seconds"]["total"] for line in timings)
    return {**rates, "busy_share": min(1.0, total / elapsed) if elapsed else None}
