"""Self-test of the shared prefix: may an agent's update compute prompts once for all their completions?"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from mmcorl.errors import UserError
from mmcorl.policy.policy import Rows
from mmcorl.policy.shared_prefix import CannotShare
from mmcorl.sharding.base import Shards
from mmcorl.trainer.microbatches import DummyBatch
from mmcorl.trainer.settings import TrainingSettings
from model_adapters import varlen
from model_adapters.errors import in_a_line

LENGTHS = (7, 2, 5, 5)
"""Tokens of the completions of a test prompt."""
TOLERANCE = {"fp32": 1e-3, "bf16": 5e-2}
"""Nats by which log-probabilities may differ: each in fp32, on average in bf16; rounding makes up to 1e-5 and 1e-2."""


def log_vision_tower_path(name: str, shards: Shards, training: TrainingSettings) -> None:
    """Print why a layer of the vision tower takes several calls where it could be one; rank 0 alone does so."""
    policy = shards.policy
    if shards.ranks.rank or policy.device.type not in varlen.KERNELS or training.attention != "sdpa":
        return
    with policy.computing(training):
        obstacle = policy.adapter.why_tower_not_one_call(policy.model)
    if obstacle:
        slower = "attention in the vision tower takes a call per window, which is slower and gives the same"
        print(f"{name}: {slower} ({obstacle})", file=sys.stderr)


def decide(name: str, shards: Shards, dummy: DummyBatch, training: TrainingSettings, temperature: float) -> bool:
    """Decide whether to compute prompts once, by `training.shared_prefix`; with `auto` a reason against it is printed.

    Called on all ranks. Raises UserError where it is `on` and the model cannot.
    """
    setting = training.shared_prefix
    if setting == "off":
        return False
    try:
        _compare(shards, dummy, training, temperature)
    except CannotShare as reason:
        if setting == "on":
            raise UserError(
                f"training.shared_prefix is 'on' but agent {name!r} cannot share the prompts of its completions "
                f"({reason}): use auto or off"
            ) from reason
        if shards.ranks.rank == 0:
            slower = "the update computes prompts once per completion, which is slower and gives the same"
            print(f"{name}: {slower} ({reason})", file=sys.stderr)
        return False
    with shards.policy.computing(training):
        obstacle = shards.policy.why_not_one_call()
    if obstacle and shards.ranks.rank == 0 and shards.policy.device.type in varlen.KERNELS:
        slower = "attention to shared prompts takes several calls per layer, which is slower and gives the same"
        print(f"{name}: {slower} ({obstacle})", file=sys.stderr)
    return True


@torch.no_grad()
def _compare(shards: Shards, dummy: DummyBatch, training: TrainingSettings, temperature: float) -> None:
    """Raise CannotShare unless both ways give made-up completions the same log-probabilities.

    Of a text prompt and, for a vision family, of one with an image.
    """
    prompts = [dummy.rollout.prompt, *([dummy.image] if dummy.image is not None else [])]
    policy = shards.policy
    allowed = torch.arange(policy.model.config.get_text_config().vocab_size)
    allowed = allowed[~torch.isin(allowed, policy.banned.cpu())]
    noise = torch.Generator().manual_seed(0)
    completions = [allowed[torch.randint(len(allowed), (n,), generator=noise)] for _ in prompts for n in LENGTHS]
    owners = [number for number in range(len(prompts)) for _ in LENGTHS]
    scores: list[Tensor] = []
    for shared in (False, True):
        try:
            with policy.computing(training):
                rows = Rows(prompts, owners, completions, shared=shared)
                scores.append(shards.logprobs(rows, temperature))
        except Exception as error:  # whatever a layer raises that takes a row of several prompts for one
            if not shared or isinstance(error, CannotShare):
                raise
            raise CannotShare(f"a test prompt raised {in_a_line(error)}") from error
    apart = (scores[0] - scores[1]).abs()
    difference = float(apart.max() if training.dtype == "fp32" else apart.mean())
    if not difference <= TOLERANCE[training.dtype]:  # also true for NaN
        raise CannotShare(f"on a test prompt its log-probabilities were {difference:.2g} nats off")
