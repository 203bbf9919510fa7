"""False alarms of the diagnosis on simulated runs in which nothing changes: `python -m tests.bench.noise`.

Two agents agree on each prompt with probability 1/2; their shares of votes for the majority scatter from prompt to
prompt around a mean that stays.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterator
from statistics import fmean
from typing import Any

from mmcorl.run.diagnosis import diagnose_lines


def stationary(prompts: int, steps: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Yield lines of metrics.jsonl of a run with so many prompts per step."""

    def share() -> float:
        return fmean(max(0.25, rng.betavariate(2.5, 1.2)) for _ in range(prompts))

    for step in range(1, steps + 1):
        agreement = fmean(rng.random() < 0.5 for _ in range(prompts))
        agents = {name: {"vote_share": share(), "reward_mean": share()} for name in "ab"}
        yield {"step": step, "agents": agents, "cohort": {"agreement": agreement}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, nargs="+", default=[4, 8, 16], help="per step; default: %(default)s")
    parser.add_argument("--steps", type=int, default=500, help="of each run; default: %(default)s")
    parser.add_argument("--runs", type=int, default=200, help="of each size; default: %(default)s")
    asked = parser.parse_args()
    for prompts in asked.prompts:
        rng = random.Random(prompts)
        told = Counter(
            finding.kind
            for _ in range(asked.runs)
            for finding in diagnose_lines(stationary(prompts, asked.steps, rng), "ring")
            if finding.collapse
        )
        shown = ", ".join(f"{kind} {told[kind] / asked.runs:.1%}" for kind in ("apart", "surer"))
        print(f"{prompts} prompts, {asked.steps} steps, {asked.runs} runs: {shown}", flush=True)


if __name__ == "__main__":
    main()
