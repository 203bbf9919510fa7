"""From the settings of a run to its interaction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmcorl.config import Config
from mmcorl.interactions.base import Conversing, Interaction, Workflow, start_conversations
from mmcorl.interactions.comas import comas
from mmcorl.interactions.debate import debate
from mmcorl.interactions.independent import Independent
from mmcorl.interactions.verifiers import Served, by_label
from mmcorl.labels.voting import Relation
from mmcorl.types import Prompt


def interaction(config: Config, relation: Relation, folder: Path) -> Interaction:
    """Return what the agents do with the prompts of each step: `config.episode`, or sampling independently.

    `folder` is the run's, where replies of a served verifier are kept. Raises UserError where the verifier's address or
    name is invalid.
    """
    episode = config.episode
    if episode is None:
        return Independent()
    agents, seed, count = len(config.agents), config.seed, config.batch.completions
    if episode.kind == "comas":
        return Conversing(lambda batch, step: comas(start_conversations(batch, count), step, agents, episode, seed))
    kind = episode.verifier.kind
    verifier = (
        Served(episode.verifier, folder / "verifier.sqlite")
        if kind == "served"
        else by_label(relation, kind, config.supervision.tie)
    )

    def start(batch: Sequence[Prompt], step: int) -> Workflow:
        return debate(start_conversations(batch, count), step, agents, episode, seed, verifier)

    return Conversing(start)
