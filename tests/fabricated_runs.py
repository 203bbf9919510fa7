"""Writes run folders with plausible numbers, for the tests of pages. No model is involved."""

from __future__ import annotations

import io
import json
import math
import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

SKILLS = ("bar", "dice", "dots", "sum")
WEAK = {"qwen": ("bar", "sum"), "intern": ("dice", "dots"), "gemma": ("dice", "bar")}
"""Skills that an agent has to learn from a peer."""
CONFIG = """\
name: {name}
seed: {seed}
steps: {steps}
supervision: {{kind: {supervision}, tie: first}}
batch: {{prompts: 16, completions: 8}}
agents: [{agents}]
"""


def write_run(
    run_dir: Path,
    *,
    name: str = "quickstart",
    supervision: str = "ring",
    agents: Sequence[str] = ("qwen", "intern"),
    steps: int = 60,
    done: int | None = None,
    evaluate_every: int = 10,
    seed: int = 0,
    gold: bool = True,
    gallery: int = 6,
) -> Path:
    """Write every file of a run folder; `done` below `steps` leaves a run in progress (no summary)."""
    done = steps if done is None else done
    chance = random.Random(f"{supervision} {seed}")
    metrics, validation, timings = [], [], []
    for step in range(done + 1):
        learned = 1 / (1 + math.exp(-(step / steps - 0.28) * 14))
        if step % evaluate_every == 0 or step == steps:
            # Runs of one seed start from the same weights.
            by_tag = {agent: _skills(agent, supervision, learned if step else seed * 0.1) for agent in agents}
            cohort = _cohort(agents, 0.08 + ((0.02 if supervision == "self" else 0.98) - 0.08) * learned)
            rows = {agent: _evaluated(values, gold) for agent, values in by_tag.items()}
            validation.append({"step": step, "set": "held_out", "agents": rows, "cohort": cohort})
        if step:
            rows = {agent: _trained(agent, supervision, learned, gold, chance) for agent in agents}
            metrics.append({"step": step, "agents": rows, "cohort": _cohort(agents, learned)})
            seconds = {"rollout": 0.05, "vote": 0.004, "update": 0.11, "evaluate": 0.4 * (step % evaluate_every == 0)}
            timings.append({"step": step, "seconds": seconds | {"total": 0.65}, "peak_rss_gb": 0.9 + 0.001 * step})
    run_dir.mkdir(parents=True, exist_ok=True)
    models = ", ".join(f"{{name: {agent}, model: zoo/tiny-{agent}}}" for agent in agents)
    values = {"name": name, "seed": seed, "steps": steps, "supervision": supervision, "agents": models}
    (run_dir / "config.yaml").write_text(CONFIG.format(**values))
    _lines(run_dir / "metrics.jsonl", metrics)
    _lines(run_dir / "validation.jsonl", validation)
    _lines(run_dir / "timings.jsonl", timings)
    (run_dir / "gallery").mkdir(exist_ok=True)
    _lines(run_dir / "gallery.jsonl", [_shown(run_dir, n, agents, supervision, gold, done) for n in range(gallery)])
    findings = [{"kind": "corrupt_image", "row_id": "17", "reason": "cannot identify image file"}]
    check = {"rows": 4000, "kept": 3997, "counts": {"corrupt_image": 2, "empty_question": 1}, "findings": findings}
    (run_dir / "data_check.json").write_text(json.dumps({"train": check}))
    if done == steps:
        (run_dir / "summary.json").write_text(json.dumps(_summary(values, validation[0], validation[-1])))
    return run_dir


def _skills(agent: str, supervision: str, learned: float) -> dict[str, float]:
    weak = 0.07 + ((0.0 if supervision == "self" else 0.99) - 0.07) * learned
    return {skill: round(weak if skill in WEAK[agent] else 0.97 + 0.02 * learned, 2) for skill in SKILLS}


def _evaluated(by_tag: dict[str, float], gold: bool) -> dict[str, Any]:
    accuracy = sum(by_tag.values()) / len(by_tag) if gold else None
    return {"accuracy": accuracy, "n": 400, "unparsed_share": 0.0025, "by_tag": by_tag if gold else {}}


def _cohort(agents: Sequence[str], value: float) -> dict[str, Any]:
    pairs = {f"{a}|{b}": round(value, 4) for i, a in enumerate(agents) for b in agents[i + 1 :]}
    return {"agreement": round(value, 4) if pairs else None, "pairs": pairs}


def _trained(agent: str, supervision: str, learned: float, gold: bool, chance: random.Random) -> dict[str, Any]:
    def near(value: float, spread: float = 0.03) -> float:
        return min(1.0, max(0.0, value + chance.gauss(0, spread)))

    right = sum(_skills(agent, supervision, learned).values()) / len(SKILLS)
    return {
        "reward_mean": near(0.9 if supervision == "self" else 0.25 + 0.68 * learned),
        "reward_std": near(0.19 - 0.09 * learned, 0.015),
        "zero_variance_share": near(0.52 + 0.2 * learned),
        "unlabelled_share": 0.0,
        "unparsed_share": near(0.03 * (1 - learned), 0.005),
        "cut_off_share": near(0.01 * (1 - learned), 0.004),
        "vote_share": near(0.86 + 0.09 * learned),
        "sampled_accuracy": near(right) if gold else None,
        "pseudo_label_accuracy": near(1.0 if supervision == "gold" else right) if gold else None,
        "completion_length": 8.2 + chance.uniform(-0.1, 0.1),
        "entropy": near(0.09 - 0.04 * learned, 0.005),
        "loss": chance.gauss(0, 0.01),
        "learning_rate": 1e-4,
    }


def _shown(
    run_dir: Path, number: int, agents: Sequence[str], supervision: str, gold: bool, done: int
) -> dict[str, Any]:
    """One entry of the gallery, with its picture."""
    tag, count, image = SKILLS[number % 4], 2 + number % 7, f"gallery/{number:02d}.png"
    file = io.BytesIO()
    Image.effect_noise((56, 56), 20 * count).save(file, "PNG")
    (run_dir / image).write_bytes(file.getvalue())
    top = {agent: str(count + (tag in WEAK[agent])) for agent in agents}
    rows = {}
    for place, agent in enumerate(agents):
        teacher = {"ring": agents[(place + 1) % len(agents)], "gold": "gold"}.get(supervision, agent)
        rows[agent] = {
            "answers": [top[agent]] * 5 + ["1"] * 2 + [None],
            "votes": [[top[agent], 5], ["1", 2]],
            "tie": False,
            "label": str(count) if teacher == "gold" else top[teacher],
            "teacher": teacher,
            "sample": f"<think>{top[agent]}</think><answer>{top[agent]}</answer>",
        }
    known = str(count) if gold else None
    facts = {"step": 1 + number * done // 100, "uid": f"uid{number}", "row": f"train-{number}", "tag": tag}
    return facts | {"text": f"How many {tag}?", "gold": known, "images": [image], "agents": rows}


def _summary(values: dict[str, Any], first: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
    agents = {
        agent: {
            "model": f"zoo/tiny-{agent}",
            "family": "Tiny",
            "parameters": 322_112,
            "trainable_parameters": 322_112,
            "start": {"held_out": first["agents"][agent]["accuracy"]},
            "end": {"held_out": last["agents"][agent]["accuracy"]},
        }
        for agent in first["agents"]
    }
    ends = {"start": first["cohort"]["agreement"], "end": last["cohort"]["agreement"]}
    return {
        **{key: values[key] for key in ("name", "supervision", "steps", "seed")},
        "seconds": 0.65 * values["steps"],
        "agents": agents,
        "agreement": {"held_out": ends},
        "grader": {"name": "mmcorl-rules", "version": "1"},
        "notes": ["The weakness of each agent is planted: it was taught a wrong habit on two skills."],
    }


def _lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


if __name__ == "__main__":
    root = Path(sys.argv[1])
    write_run(root / "corl")
    write_run(root / "self", name="quickstart-self", supervision="self")
    write_run(root / "gold", name="quickstart-gold", supervision="gold")
