"""Writes run folders with plausible numbers, for the tests of what people look at. No model is involved."""

from __future__ import annotations

import io
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

SKILLS = ("bar", "dice", "dots", "sum")
QUESTIONS = {
    "bar": "How tall is the bar?",
    "dice": "What is the total of the two dice?",
    "dots": "How many dots are there?",
    "sum": "What is the sum of the two digits?",
}
MODELS = {
    "qwen": ("zoo/tiny-qwen2.5-vl", "Qwen2.5-VL", 322_112),
    "intern": ("zoo/tiny-internvl3.5", "InternVL3.5", 208_064),
    "gemma": ("zoo/tiny-gemma-3", "Gemma-3", 191_360),
}
WEAK = {"qwen": ("bar", "sum"), "intern": ("dice", "dots"), "gemma": ("dice", "bar")}
PHASES = {"rollout": 0.05, "vote": 0.004, "update": 0.11, "evaluate": 0.0, "checkpoint": 0.0}


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
    noise: int = 0,
) -> Path:
    """Write every file of a run folder; `done` below `steps` leaves a run in progress (no summary)."""
    done = steps if done is None else done
    chance = random.Random(f"{name} {supervision} {seed} {noise}")
    run_dir.mkdir(parents=True, exist_ok=True)
    _write_config(run_dir, name, supervision, agents, steps, seed)
    metrics, validation, timings = [], [], []
    for step in range(done + 1):
        progress = 1 / (1 + math.exp(-(step / steps - 0.28) * 14))
        skill = {agent: _skills(agent, supervision, progress, chance) for agent in agents}
        evaluates = step % evaluate_every == 0 or step == steps
        if evaluates:
            if step == 0:  # every run of one seed starts from the same weights
                same = random.Random(seed)
                skill = {agent: _skills(agent, "ring", progress, same) for agent in agents}
                validation.append(_validation(step, skill, gold, "ring", progress, same))
            else:
                validation.append(_validation(step, skill, gold, supervision, progress, chance))
        if step:
            metrics.append(_metrics(step, skill, gold, supervision, progress, chance))
            seconds = {k: v * chance.uniform(0.9, 1.3) for k, v in PHASES.items()}
            seconds["evaluate"] = 0.4 * evaluates
            seconds["checkpoint"] = 0.08 * evaluates
            seconds["total"] = sum(seconds.values())
            timings.append({"step": step, "seconds": seconds, "peak_rss_gb": 0.9 + 0.001 * step})
    _lines(run_dir / "metrics.jsonl", metrics)
    _lines(run_dir / "validation.jsonl", validation)
    _lines(run_dir / "timings.jsonl", timings)
    _write_gallery(run_dir, agents, supervision, gallery, done, gold, chance)
    (run_dir / "data_check.json").write_text(
        json.dumps(
            {
                "train": {
                    "rows": 4000,
                    "kept": 3997,
                    "counts": {"corrupt_image": 2, "empty_question": 1},
                    "findings": [
                        {"kind": "corrupt_image", "row_id": "17", "reason": "cannot identify image file"},
                        {"kind": "empty_question", "row_id": "1840", "reason": "the question is empty"},
                    ],
                },
                "held_out": {"rows": 400, "kept": 400, "counts": {}, "findings": []},
            }
        )
    )
    if done == steps:
        first, last = validation[0], validation[-1]
        summary = {
            "name": name,
            "supervision": supervision,
            "steps": steps,
            "seed": seed,
            "seconds": sum(t["seconds"]["total"] for t in timings),
            "agents": {
                agent: {
                    "model": MODELS[agent][0],
                    "family": MODELS[agent][1],
                    "parameters": MODELS[agent][2],
                    "trainable_parameters": MODELS[agent][2],
                    "start": {"held_out": first["agents"][agent]["accuracy"]},
                    "end": {"held_out": last["agents"][agent]["accuracy"]},
                }
                for agent in agents
            },
            "agreement": {"held_out": {"start": first["cohort"]["agreement"], "end": last["cohort"]["agreement"]}},
            "grader": {"name": "mmcorl-rules", "version": "1"},
            "notes": ["The weakness of each agent is planted: it was taught a wrong habit on two skills."],
        }
        (run_dir / "summary.json").write_text(json.dumps(summary))
    return run_dir


def _skills(agent: str, supervision: str, progress: float, chance: random.Random) -> dict[str, float]:
    weak_target = 0.0 if supervision == "self" else 0.99
    values = {}
    for skill in SKILLS:
        start = 0.07 if skill in WEAK[agent] else 0.97
        target = weak_target if skill in WEAK[agent] else 0.99
        value = start + (target - start) * progress + chance.uniform(-0.02, 0.02)
        values[skill] = round(min(1.0, max(0.0, value)) * 100) / 100
    return values


def _agreement(supervision: str, progress: float, chance: random.Random) -> float:
    end = 0.02 if supervision == "self" else 0.985
    return round(min(1.0, max(0.0, 0.08 + (end - 0.08) * progress + chance.uniform(-0.01, 0.01))), 4)


def _pairs(agents: Sequence[str], value: float, chance: random.Random) -> dict[str, float]:
    return {
        f"{a}|{b}": round(min(1.0, max(0.0, value + chance.uniform(-0.03, 0.03))), 4)
        for i, a in enumerate(agents)
        for b in agents[i + 1 :]
    }


def _cohort(agents: Sequence[str], value: float, chance: random.Random) -> dict[str, Any]:
    pairs = _pairs(agents, value, chance)
    mean = sum(pairs.values()) / len(pairs) if pairs else None
    return {"agreement": mean, "pairs": pairs}


def _validation(
    step: int,
    skill: dict[str, dict[str, float]],
    gold: bool,
    supervision: str,
    progress: float,
    chance: random.Random,
) -> dict[str, Any]:
    agents = {
        agent: {
            "accuracy": sum(values.values()) / len(values) if gold else None,
            "n": 400,
            "unparsed_share": 0.0025,
            "cut_off_share": 0.0,
            "completion_length": 8.2,
            "by_tag": values if gold else {},
        }
        for agent, values in skill.items()
    }
    cohort = _cohort(list(skill), _agreement(supervision, progress, chance), chance)
    return {"step": step, "set": "held_out", "agents": agents, "cohort": cohort}


def _metrics(
    step: int,
    skill: dict[str, dict[str, float]],
    gold: bool,
    supervision: str,
    progress: float,
    chance: random.Random,
) -> dict[str, Any]:
    def near(value: float, spread: float = 0.04) -> float:
        return min(1.0, max(0.0, value + chance.gauss(0, spread)))

    agents = {}
    for agent, values in skill.items():
        sampled = sum(values.values()) / len(values)
        label = {"gold": 1.0, "self": near(sampled)}.get(supervision, near(0.55 + 0.43 * progress))
        reward = near(0.88 + 0.07 * progress) if supervision == "self" else near(0.25 + 0.68 * progress)
        agents[agent] = {
            "reward_mean": reward,
            "reward_std": near(0.19 - 0.09 * progress, 0.015),
            "zero_variance_share": near(0.52 + 0.2 * progress),
            "tie_share": near(0.05 * (1 - progress), 0.01),
            "unlabelled_share": 0.0,
            "unparsed_share": near(0.03 * (1 - progress), 0.005),
            "cut_off_share": near(0.01 * (1 - progress), 0.004),
            "vote_share": near(0.86 + 0.09 * progress, 0.02),
            "sampled_accuracy": near(sampled) if gold else None,
            "pseudo_label_accuracy": label if gold else None,
            "completion_length": 8.2 + chance.uniform(-0.1, 0.1),
            "entropy": near(0.09 - 0.04 * progress, 0.005),
            "loss": chance.gauss(0, 0.01),
            "grad_norm": 0.8 + chance.gauss(0, 0.2),
            "clip_share": 0.0,
            "importance_weight_mean": 1.0,
            "importance_weight_max": 1.0,
            "learning_rate": 1e-4 * min(1, step / 5),
        }
    cohort = _cohort(list(skill), _agreement(supervision, progress, chance), chance)
    return {"step": step, "agents": agents, "cohort": cohort}


def picture(seed: int, count: int) -> bytes:
    """A 56x56 PNG with `count` dots, as the synthetic task draws them."""
    chance = random.Random(seed)
    image = Image.new("RGB", (56, 56), (244, 241, 232))
    draw = ImageDraw.Draw(image)
    for cell in chance.sample(range(16), count):
        x, y = 7 + 14 * (cell % 4) + chance.randint(-2, 2), 7 + 14 * (cell // 4) + chance.randint(-2, 2)
        draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=(30, 70, 140))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _write_gallery(
    run_dir: Path,
    agents: Sequence[str],
    supervision: str,
    size: int,
    done: int,
    gold: bool,
    chance: random.Random,
) -> None:
    (run_dir / "gallery").mkdir(exist_ok=True)
    entries = []
    for index in range(size):
        tag = SKILLS[index % 4]
        count = chance.randint(2, 9)
        image = f"gallery/{name_of(index)}.png"
        (run_dir / image).write_bytes(picture(index, count))
        votes = {}
        for agent in agents:
            top = str(count + 1 if tag in WEAK[agent] else count)
            other = str(count if tag in WEAK[agent] else count - 1)
            votes[agent] = (top, [[top, 5], [other, 2]], [top] * 5 + [other] * 2 + [None])
        names = list(agents)
        entry: dict[str, Any] = {
            "step": 1 + index * max(1, done // max(1, size)),
            "uid": f"uid{index}",
            "row": f"train-{index}",
            "text": QUESTIONS[tag],
            "gold": str(count) if gold else None,
            "tag": tag,
            "images": [image],
            "agents": {},
        }
        for place, agent in enumerate(names):
            peer = names[(place + 1) % len(names)] if supervision == "ring" else agent
            label = str(count) if supervision == "gold" else votes[peer][0]
            entry["agents"][agent] = {
                "answers": votes[agent][2],
                "votes": votes[agent][1],
                "tie": False,
                "label": label,
                "teacher": "gold" if supervision == "gold" else peer,
                "sample": f"<think>{votes[agent][0]}</think><answer>{votes[agent][0]}</answer>",
            }
        entries.append(entry)
    _lines(run_dir / "gallery.jsonl", entries)


def name_of(index: int) -> str:
    """The stem of the picture of one gallery entry."""
    return f"ab{index:02d}"


def _write_config(run_dir: Path, name: str, supervision: str, agents: Sequence[str], steps: int, seed: int) -> None:
    lines = [
        f"name: {name}",
        f"seed: {seed}",
        f"steps: {steps}",
        "supervision:",
        f"  kind: {supervision}",
        "  tie: first",
        "batch:",
        "  prompts: 16",
        "  completions: 8",
        "agents:",
    ]
    for agent in agents:
        lines += [f"  - name: {agent}", f"    model: {MODELS[agent][0]}"]
    (run_dir / "config.yaml").write_text("\n".join(lines) + "\n")


def _lines(path: Path, records: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


if __name__ == "__main__":
    import sys

    root = Path(sys.argv[1])
    write_run(root / "corl")
    write_run(root / "self", name="quickstart-self", supervision="self")
    write_run(root / "gold", name="quickstart-gold", supervision="gold")
    write_run(root / "ring3", name="three-agents", agents=("qwen", "gemma", "intern"), done=33)
