"""The predicted memory of each agent, beside the memory that a run measures."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mmcorl.agent import Cohort
from mmcorl.apps.doctor import memory_forecast as memory
from mmcorl.config import Config
from mmcorl.policy.prompt_encoder import PromptEncoder
from mmcorl.run.prepare import Inputs
from mmcorl.training import MemoryOf
from mmcorl.types import Prompt
from model_adapters.errors import in_a_line

SAMPLED_PROMPTS = 8
"""Training prompts that are encoded to predict memory: how much of a prompt its images are."""


def forecast_memory(config: Config, inputs: Inputs, gpu: bool, quiet: bool) -> MemoryOf:
    """Predict the memory of a run before anything is loaded; a `mmcorl.training.Forecast`."""
    sample = inputs.prompts.sample(SAMPLED_PROMPTS)
    budgets = predict(config, inputs.encoders, inputs.longest, sample, gpu=gpu, quiet=quiet)
    return partial(predicted, budgets, agents=len(inputs.encoders), time_sliced=config.time_sliced)


def predict(
    config: Config,
    encoders: Sequence[PromptEncoder],
    longest: Mapping[str, int],
    prompts: Sequence[Prompt],
    *,
    gpu: bool,
    quiet: bool,
) -> dict[str, memory.Budget]:
    """Return the memory that each agent needs with these data, before anything is loaded; print it unless `quiet`.

    `longest` is the longest training prompt in tokens by agent; sample `prompts` show the share of image tokens.
    """
    budgets = {}
    numbers = {agent.name: number for number, agent in enumerate(config.agents)}
    for encoder in encoders:
        # Replies of the other agents can make the prompts of an episode as long as the limit.
        limit = encoder.longest_prompt()
        length = limit if config.episode else min(limit, longest[encoder.name])
        try:
            shape = memory.shape_of(encoder)
            if shape is None:
                continue
            lengths = memory.prompts_of(encoder, length, prompts)
            budgets[encoder.name] = memory.budget(config, numbers[encoder.name], shape, prompts=lengths, cpu=not gpu)
        except Exception as error:  # a model may have any shape, and a run needs no prediction
            print(f"{encoder.name}: its memory cannot be predicted ({in_a_line(error)})", file=sys.stderr)
            continue
        if not quiet:
            print(f"{encoder.name}: {budgets[encoder.name].sentence('GPU' if gpu else 'rank')}", file=sys.stderr)
    return budgets


def predicted(
    budgets: Mapping[str, memory.Budget], cohort: Cohort, *, agents: int, time_sliced: bool
) -> dict[str, dict[str, Any]]:
    """Return the prediction to compare with the measured memory: one for all `agents` whose models share a process."""
    if not (cohort.one_process and agents > 1):
        return {name: {"predicted_gb": round(budget.tensors / 1e9, 3)} for name, budget in budgets.items()}
    if len(budgets) < agents:
        return {}
    total = memory.together(list(budgets.values()), time_sliced)
    return {name: {"predicted_gb": round(total / 1e9, 3), "together": True} for name in budgets}
