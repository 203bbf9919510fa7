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
from model_adapters.testing.subject import Failed, Skipped, Subject

GRADIENT = 1e-3
"""Largest difference of two gradients in fp32, as a share of their norm; rounding makes up to 1e-5."""


def scored(subject: Subject) -> str:
    """Score all rows in one batch as an update does, with the prompts once per completion and once for all.

    Both ways have one gradient, too: that of the embeddings, which every layer has a part in.
    """
    policy = Policy(subject.model, subject.adapter, subject.processor)
    plain_rows = zip(subject.encoded, subject.completions, [row for row, _ in subject.plain_rows], strict=True)
    odd = subject.odd_rows[0] if subject.adapter.multimodal else []
    prompts, completions, expected = zip(*plain_rows, *odd, strict=True)
    rows = Rows(prompts, range(len(prompts)), completions)
    (plain, gradient), shared = _with_gradient(policy, rows), "prompts once"
    try:
        once, other = _with_gradient(policy, replace(rows, shared=True))
    except Exception as error:  # a run says so and goes on
        shared, once, other = f"prompts once per completion ({in_a_line(error)})", plain, gradient
    subject.compare([once], [plain], "prompts once against once per completion, see bidirectional_spans")
    share = float((other - gradient).norm() / gradient.norm())
    if policy.model.dtype == torch.float32 and not share <= GRADIENT:
        raise Failed(f"prompts once have another gradient, off by {share:.1e} of its norm: a state is detached")
    policy.banned = policy.banned[:0]  # of which transformers knows nothing
    with torch.no_grad():
        ours = policy(rows)
    return f"{subject.compare([ours], [torch.cat(expected)], 'against a plain forward pass')}; {shared}"


def _with_gradient(policy: Policy, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities, and the gradient of their squares in the embeddings."""
    with torch.enable_grad():
        scores = policy(rows)
        (gradient,) = torch.autograd.grad(scores.square().sum(), policy.model.get_input_embeddings().weight)
    return scores.detach(), gradient


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
