"""Checks of an adapter that need the trainer, unlike its contract: scoring by the policy, and memory."""

from __future__ import annotations

from dataclasses import asdict, replace

import torch

from mmcorl.apps.doctor.memory_forecast import budget, shape_of
from mmcorl.config import parse
from mmcorl.policy.policy import Policy, Rows
from mmcorl.policy.prompt_encoder import PromptEncoder
from model_adapters.errors import in_a_line
from model_adapters.registry import is_outside, spec_of
from model_adapters.testing.subject import Skipped, Subject


@torch.no_grad()
def scored(subject: Subject) -> str:
    """Score all rows in one batch as an update does, with the prompts once per completion and once for all."""
    policy = Policy(subject.model, subject.adapter, subject.processor)
    plain_rows = zip(subject.encoded, subject.completions, [row for row, _ in subject.plain_rows], strict=True)
    odd = subject.odd_rows[0] if subject.adapter.multimodal else []
    prompts, completions, expected = zip(*plain_rows, *odd, strict=True)
    rows = Rows(prompts, range(len(prompts)), completions)
    plain, shared = policy(rows), "prompts once"
    try:
        policy.share_prefixes()
        once = policy(replace(rows, shared=True))
    except Exception as error:  # a run says so and goes on
        shared, once = f"prompts once per completion ({in_a_line(error)})", plain
    subject.compare([once], [plain], "prompts once against once per completion, see bidirectional_spans")
    policy.banned = policy.banned[:0]  # of which transformers knows nothing
    return f"{subject.compare([policy(rows)], [torch.cat(expected)], 'against a plain forward pass')}; {shared}"


def predicted(subject: Subject) -> str:
    """Predict the memory of an update, which must not fail whatever the model's shape."""
    spec = spec_of(subject.adapter) if is_outside(subject.adapter) else None
    agent = {"name": "a", "model": str(subject.path), "adapter": spec}
    smallest = {"agents": [agent], "supervision": {"kind": "self"}, "data": {"train": {"source": "synthetic:text"}}}
    config = parse({"steps": 1, "vision": asdict(subject.vision), **smallest})
    if (shape := shape_of(PromptEncoder(config, config.agents[0], str(subject.path)))) is None:
        raise Skipped("its config does not name the widths of its layers")
    return budget(config, 0, shape, cpu=True).sentence("rank")


CHECKS = {"scores through the policy": scored, "memory is predicted": predicted}
