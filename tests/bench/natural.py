"""Co-training where no error is planted: `python -m tests.bench.natural ['headline/*' ...] [--seeds 0 1 2]`.

Models taught few real examples (`natural:`), in the arms that reviewers ask for. In all but `factors` a seed is a
start: other examples, other weights, other sampling noise. In `factors` the models of a block are the same for every
seed, which is the sampling noise and the order of prompts alone: seeds are nested in pairs, pairs in blocks. Every
run is an ordinary one of configs/quickstart.yaml in OUT/EXPERIMENT/ARM/seed_S; the same command goes on where it was
interrupted, and ends with tables and pictures of all that is finished, OUT/page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.bench.arms import Arm, main

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "quickstart.yaml"
PAIR = ("qwen2.5-vl", "internvl3.5")
FAMILIES = (*PAIR, "smolvlm2")
STEPS = {"steps": 300, "checkpoint__every": 300}
"""Three times as many as in the quickstart, which is to end sooner."""
FASTER = {"optimizer__lr": 2e-4, "steps": 200, "checkpoint__every": 200}
"""Twice the learning rate, at which known answers teach more in fewer steps."""
SELF, GOLD = {"supervision__kind": "self"}, {"supervision__kind": "gold"}


def model(family: str, examples: int, weights: int, steps: str = "") -> str:
    return f"natural:{family},examples={examples}{steps}@{weights}"


def start(seed: int, families: tuple[str, ...] = PAIR, agents: int = 2, steps: str = "") -> list[str]:
    """Models that share neither examples nor, if there are enough, a family.

    No two starts of five share examples of handwriting or numbers. Of typefaces there are three sets that share none:
    the second and third start are taught a deal of their own.
    """
    return [model(families[i % len(families)], agents * seed + i + 1, seed, steps) for i in range(agents)]


def headline(seed: int) -> Iterator[Arm]:
    """A peer's votes, its votes while it does not learn, one's own, and known answers."""
    yield from arms(start(seed))


def unsure(seed: int) -> Iterator[Arm]:
    """The same again after half of the lessons: as often right, less sure, p_A + p_B of single samples near 1."""
    yield from arms(start(seed, steps=",steps=150"), **FASTER)


def faster(seed: int) -> Iterator[Arm]:
    """The headline at twice the learning rate."""
    yield from arms(start(seed), **FASTER)


def imbalanced(seed: int) -> Iterator[Arm]:
    """The headline after twice the lessons from digits as they come: each model lacks other ones."""
    yield from arms(start(seed, steps=",steps=600,imbalanced"))


def typefaces(seed: int) -> Iterator[Arm]:
    """The headline's arms on printed figures: each model knows a few typefaces, all others are unseen."""
    yield from arms(start(seed, tuple(f"{family}-typefaces" for family in PAIR)), **rows("typefaces"))


def numbers(seed: int) -> Iterator[Arm]:
    """The headline's arms without pictures: numbers in words, written in digits."""
    yield from arms(start(seed, ("qwen2-numbers", "llama-numbers")), **rows("numbers"))


def rows(kind: str) -> dict[str, Any]:
    """What is trained on and tested in place of handwriting."""
    source = f"natural:{kind}"
    held_out = {"name": "held_out", "data": {"source": source, "seed": 1, "size": 400}}
    return {"data__train__source": source, "validation__sets": [held_out]}


def arms(models: list[str], **changes: Any) -> Iterator[Arm]:
    changes = STEPS | changes
    yield Arm("ring", models, changes=changes)
    for place, name in enumerate(("first", "last")):
        yield Arm(f"{name}_frozen", models, changes=changes, agents={place: {"frozen": True}})
    yield Arm("self", models, changes=SELF | changes)
    yield Arm("gold", models, changes=GOLD | changes)


CELLS: Mapping[str, tuple[bool, bool]] = {
    "same_same": (False, False),
    "same_other": (False, True),
    "other_same": (True, False),
    "other_other": (True, True),
}
"""Family and examples of a block's partners: whether they are others than those of its first agent."""
BLOCKS = 6


def factors(seed: int) -> Iterator[Arm]:
    """The same agent with four partners, of the same or another family, taught the same or other examples."""
    for block in range(BLOCKS):
        family, examples = FAMILIES[block % 3], block + 1
        first = model(family, examples, block)
        for cell, (of_family, of_examples) in CELLS.items():
            partner = model(
                FAMILIES[(block + 1 + block // 3) % 3] if of_family else family,
                (block + 1) % BLOCKS + 1 if of_examples else examples,
                100 + block,
            )
            yield Arm(f"{cell}.{block}", [first, partner], changes={"validation__every": 100} | STEPS)


def cohort(seed: int) -> Iterator[Arm]:
    """Rings of the first two, three and four of four agents, each of a family of its own."""
    models = start(seed, (*FAMILIES, "qwen3-vl"), 4)
    for agents in (2, 3, 4):
        yield Arm(f"ring_of_{agents}", models[:agents], changes=STEPS)
    yield Arm("self_of_4", models, changes=SELF | STEPS)


def long(seed: int) -> Iterator[Arm]:
    """Ten times as many steps, half as many prompts in each: what rises, and what then falls."""
    longer = {"steps": 3000, "batch__prompts": 16, "validation__every": 150, "checkpoint__every": 3000}
    models = start(seed)
    yield Arm("ring", models, changes=longer)
    yield Arm("self", models, changes=SELF | longer)
    yield Arm("last_frozen", models, changes=longer, agents={1: {"frozen": True}})
    for rule in ("pooled", "adaptive"):
        yield Arm(rule, models, changes={"supervision__kind": rule} | longer)
    yield Arm("share", models, changes={"reward": "share"} | longer)
    for method in ("rent", "intuitor"):
        yield Arm(method, models, method=method, changes=longer)


EXPERIMENTS = {
    "headline": headline,
    "faster": faster,
    "unsure": unsure,
    "imbalanced": imbalanced,
    "typefaces": typefaces,
    "numbers": numbers,
    "factors": factors,
    "cohort": cohort,
    "long": long,
}

if __name__ == "__main__":
    from tests.bench import natural_page

    main("natural", __doc__, EXPERIMENTS, CONFIG, [model(family, 1, 0) for family in PAIR], natural_page.write)
