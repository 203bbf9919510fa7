"""A config beside the runs of the paper, setting by setting: `mmcorl train CONFIG --dry`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mmcorl.config import Config
from mmcorl.data.settings import DataSettings
from mmcorl.prompts.styles import STYLES, instruction_of
from mmcorl.run.table import Cell, Table, cells
from mmcorl.synthetic.rows import PICTURES

Kind = Literal["text", "vlm"]
NOT_SAID = object()
ONE_SET = "one set for all agents"

Row = tuple[str, Literal["paper", "release"], Any, Any]
SETTINGS: tuple[Row, ...] = (
    # Section 6.1, "Training details", and appendix D.5.
    ("epochs", "paper", 2, 1),
    ("batch.prompts", "paper", 128, NOT_SAID),
    ("batch.completions", "paper", 12, 8),
    ("sampling.temperature", "paper", 1.0, 1.0),
    ("sampling.max_new_tokens", "paper", 3072, 1024),
    ("optimizer.lr", "paper", 3e-6, 1e-6),
    ("objective.importance_correction", "paper", "off", "token_truncate"),
    ("vision.max_side", "paper", NOT_SAID, 1024),
    ("vision.tiles", "paper", NOT_SAID, 1),
    # DrStranded/Co-RL ff476f0, where the paper says nothing.
    ("batch.prompts", "release", NOT_SAID, 8),
    ("batch.refill", "release", 0.0, 0.0),
    ("batch.order", "release", "shuffled", "shuffled"),
    ("data.max_prompt_tokens", "release", 3584 - 3072, 4096 - 1024),
    ("answers.extraction", "release", "last_number", "answer_tags"),
    ("answers.vote_by", "release", "strings", "strings"),
    ("supervision.tie", "release", "first_seen", "first_seen"),
    ("supervision.min_share", "release", 0.0, 0.0),
    ("supervision.votes", "release", None, None),  # as many as are trained
    ("sampling.top_p", "release", 1.0, 1.0),
    ("objective.aggregation", "release", "bnpo", "bnpo"),
    ("objective.bnpo_completions", "release", 2, 2),  # of pairs and more
    ("objective.advantage_std", "release", "unbiased", "unbiased"),
    ("objective.clip_low", "release", 0.2, 0.2),
    ("objective.clip_high", "release", 0.2, 0.2),
    ("objective.clip_dual", "release", None, None),
    ("objective.advantage_eps", "release", 1e-4, 1e-4),  # as in TRL
    ("objective.minibatches", "release", 1, 1),
    ("objective.kl_coef", "release", 0.0, 0.0),
    ("objective.importance_cap", "release", 3.0, 3.0),
    ("optimizer.betas", "release", (0.9, 0.95), (0.9, 0.95)),
    ("optimizer.weight_decay", "release", 0.0, 0.0),
    ("optimizer.schedule", "release", "cosine", "cosine"),
    ("optimizer.min_lr_ratio", "release", 0.1, 0.1),
    ("optimizer.warmup_ratio", "release", 0.03, 0.03),
    ("optimizer.max_grad_norm", "release", 1.0, 1.0),
    ("seed", "release", 42, 42),
    ("data_seed", "release", 42, 42),
)
"""Setting, where its value stands, and the value for text runs and for vision-language runs."""


@dataclass(frozen=True)
class Comparison:
    """A setting, as the paper or its release has it and as a config does."""

    setting: str
    stands_in: str
    theirs: Any
    here: Any

    @property
    def equal(self) -> bool:
        return bool(self.theirs == self.here)


def kind_of(train: DataSettings) -> Kind:
    """Return which of the paper's runs a run is like, by its training data."""
    return "vlm" if train.columns.image or train.synthetic in PICTURES else "text"


def beside_the_paper(config: Config) -> list[Comparison]:
    """Return every setting of the paper's runs and what a config has there."""
    kind = kind_of(config.data.train)
    rows = [Comparison("all ranks", "paper", 8, sum(agent.ranks for agent in config.local_agents))]
    still = [f"{agent.name} ({'served' if agent.served else 'frozen'})" for agent in config.agents if not agent.learns]
    rows.append(Comparison("agents that never learn", "paper", "none", ", ".join(still) or "none"))
    apart = [f"{', '.join(names)} on {part.source}" for names, part in config.data_of.items()]
    data = "; ".join([f"all on {config.data.train.source}", *apart]) if apart else ONE_SET
    rows.append(Comparison("training data", "paper", ONE_SET, data))
    taught = config.supervision.kind
    # The paper's baselines TTRL and GT-Reward; one agent has no peer.
    baseline = taught in ("self", "gold") or len(config.agents) == 1
    if baseline:
        theirs = taught if taught in ("self", "gold") else "self"
    else:
        # Eq. 3 has each agent taught by the one before it; for two agents that is the other one.
        theirs = "ring" if len(config.agents) == 2 and taught == "ring" else "ring_previous"
    rows.append(Comparison("supervision.kind", "paper", theirs, taught))
    instruction = instruction_of(config.prompt)
    styles = [name for name, style in STYLES.items() if style.instruction == instruction]
    released = "paper_text" if kind == "text" else "paper_tags"
    rows.append(Comparison("prompt.style", "release", released, styles[0] if styles else "own instruction"))
    for path, stands_in, text, vlm in SETTINGS:
        value = text if kind == "text" else vlm
        if value is not NOT_SAID:
            here: Any = config
            for name in path.split("."):
                here = getattr(here, name)
            if baseline and path == "objective.bnpo_completions":
                # Baselines for images: 1 up to 4B, 2 from 7B on.
                value = 3 if kind == "text" else 2 if here == 2 else 1
            rows.append(Comparison(path, stands_in, value, here))
    return rows


def tables(rows: Sequence[Comparison], name: str, kind: Kind) -> list[Table]:
    """Return the comparison of a run for people: with the paper, with its release, and a sentence on what differs."""
    differing = [row.setting for row in rows if not row.equal]
    runs = {"text": "text", "vlm": "vision-language"}[kind]
    notes = [f"{len(rows) - len(differing)} of {len(rows)} settings are equal."]
    notes += [f"Not equal: {', '.join(differing)}."] if differing else []
    titles = {
        "paper": f"{name} beside the paper's {runs} runs (section 6.1, appendix D.5)",
        "release": "beside the authors' release, where the paper says nothing",
    }
    return [
        Table(
            title,
            [("", "left"), ("theirs", "left"), ("this config", "left"), ("equal", "left")],
            [
                [*cells(row.setting, _shown(row.theirs), _shown(row.here)), _mark(row.equal)]
                for row in rows
                if row.stands_in == stands_in
            ],
            notes if stands_in == "release" else (),
        )
        for stands_in, title in titles.items()
    ]


def _mark(equal: bool) -> Cell:
    return Cell("yes") if equal else Cell("no", style="bold red")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
