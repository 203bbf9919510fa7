"""From the settings of a run to its workflow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmcorl.config import Config
from mmcorl.interactions.base import Workflow, Workflows, talks_of
from mmcorl.interactions.comas import comas
from mmcorl.interactions.debate import Verifier, debate
from mmcorl.interactions.verifiers import Served, by_label
from mmcorl.labels.voting import Relation
from mmcorl.types import Prompt


def workflows(config: Config, relation: Relation, folder: Path) -> Workflows:
    """What agents do with the problems of each step; `folder` is the run's, where a served verifier's replies are kept.

    Raises UserError where the verifier's endpoint cannot be meant.
    """
    settings = config.episode
    assert settings is not None
    agents, seed, conversations = len(config.agents), config.seed, config.batch.completions
    if settings.kind == "comas":
        return lambda batch, step: comas(talks_of(batch, conversations), step, agents, settings, seed)
    verifier = _verifier(config, relation, folder)

    def start(batch: Sequence[Prompt], step: int) -> Workflow:
        return debate(talks_of(batch, conversations), step, agents, settings, seed, verifier)

    return start


def _verifier(config: Config, relation: Relation, folder: Path) -> Verifier:
    assert config.episode is not None
    settings = config.episode.verifier
    if settings.kind == "served":
        return Served(settings, folder / "verifier.sqlite")
    return by_label(relation, settings.kind, config.supervision.tie)
