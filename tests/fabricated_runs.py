"""Writes run folders with plausible numbers, for the tests of pages. No model is involved."""

from __future__ import annotations

import io
import json
import math
import random
from pathlib import Path
from typing import Any

from PIL import Image

SKILLS = ("bar", "dice", "dots", "sum")
WEAK = {"qwen": ("bar", "sum"), "intern": ("dice", "dots")}
"""Skills that an agent has to learn from a peer."""
AGENTS = tuple(WEAK)
SHARES = ["zero_variance_share", "unlabelled_share", "unparsed_share", "cut_off_share", "vote_share", "entropy"]


def write_run(
    run_dir: Path,
    *,
    name: str = "quickstart",
    supervision: str = "ring",
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
    goal = 0.0 if supervision == "self" else 0.98
    metrics, validation, timings = [], [], []
    for step in range(done + 1):
        learned = 1 / (1 + math.exp(-(step / steps - 0.28) * 14))
        # Runs of one seed start from the same weights.
        weak = 0.07 + (goal - 0.07) * (learned if step else seed * 0.1)
        tags = {
            agent: {skill: round(weak if skill in WEAK[agent] else 0.97, 2) for skill in SKILLS} for agent in AGENTS
        }
        right = {agent: sum(by_tag.values()) / 4 if gold else None for agent, by_tag in tags.items()}
        cohort = {"agreement": round(0.08 + (goal - 0.08) * learned, 4)}
        cohort |= {"pairs": {"qwen|intern": cohort["agreement"]}}
        if step % evaluate_every == 0 or step == steps:
            shown = {agent: {"accuracy": right[agent], "n": 400, "unparsed_share": 0.0025} for agent in AGENTS}
            for agent in AGENTS:
                shown[agent]["by_tag"] = tags[agent] if gold else {}
            validation.append({"step": step, "set": "held_out", "agents": shown, "cohort": cohort})
        if step:
            facts = {"reward_mean": 0.25 + 0.65 * learned, "reward_std": 0.1, "completion_length": 8.2, "loss": 0.01}
            trained = {
                agent: facts
                | {key: chance.random() for key in SHARES}
                | {"learning_rate": 1e-4, "sampled_accuracy": right[agent], "pseudo_label_accuracy": right[agent]}
                for agent in AGENTS
            }
            metrics.append({"step": step, "agents": trained, "cohort": cohort})
            seconds = {"rollout": 0.05, "vote": 0.004, "update": 0.11, "evaluate": 0.4 * (step % evaluate_every == 0)}
            timings.append({"step": step, "seconds": seconds | {"total": 0.65}, "peak_rss_gb": 0.9 + 0.001 * step})
    (run_dir / "gallery").mkdir(parents=True, exist_ok=True)
    config = {"name": name, "seed": seed, "steps": steps, "supervision": {"kind": supervision, "tie": "first"}}
    config |= {"batch": {"prompts": 16, "completions": 8}}
    config |= {"agents": [{"name": agent, "model": f"zoo/tiny-{agent}"} for agent in AGENTS]}
    (run_dir / "config.yaml").write_text(json.dumps(config))
    entries = [_entry(run_dir, number, supervision, gold, done) for number in range(gallery)]
    logs = {"metrics": metrics, "validation": validation, "timings": timings, "gallery": entries}
    for log, records in logs.items():
        (run_dir / f"{log}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    findings = [{"kind": "corrupt_image", "row_id": "17", "reason": "cannot identify image file"}]
    check = {"rows": 4000, "kept": 3997, "counts": {"corrupt_image": 2, "empty_question": 1}, "findings": findings}
    check["notes"] = {"original wording in view rephrased": 41, "further_images": 5}
    (run_dir / "data_check.json").write_text(json.dumps({"train": check}))
    if done == steps:
        ends = {key: validation[place]["cohort"]["agreement"] for key, place in (("start", 0), ("end", -1))}
        facts = {"model": "zoo/tiny", "family": "Tiny", "parameters": 322_112, "trainable_parameters": 322_112}
        summary = {"name": name, "supervision": supervision, "steps": steps, "seed": seed, "seconds": 0.65 * steps}
        summary |= {"agents": dict.fromkeys(AGENTS, facts), "agreement": {"held_out": ends}}
        summary |= {"grader": {"name": "mmcorl-rules", "version": "1"}, "notes": ["The weakness is planted."]}
        (run_dir / "summary.json").write_text(json.dumps(summary))
    return run_dir


def _entry(run_dir: Path, number: int, supervision: str, gold: bool, done: int) -> dict[str, Any]:
    """One entry of the gallery, with its picture."""
    tag, count, image = SKILLS[number % 4], 2 + number % 7, f"gallery/{number:02d}.png"
    file = io.BytesIO()
    Image.effect_noise((56, 56), 20 * count).save(file, "PNG")
    (run_dir / image).write_bytes(file.getvalue())
    top = {agent: str(count + (tag in WEAK[agent])) for agent in AGENTS}
    rows = {}
    for agent, peer in (AGENTS, AGENTS[::-1]):
        teacher = {"ring": peer, "gold": "gold"}.get(supervision, agent)
        rows[agent] = {
            "answers": [top[agent]] * 5 + ["1"] * 2 + [None],
            "votes": [[top[agent], 5], ["1", 2]],
            "tie": False,
            "label": str(count) if teacher == "gold" else top[teacher],
            "teacher": teacher,
            "sample": f"<think>{top[agent]}</think><answer>{top[agent]}</answer>",
        }
    facts = {"step": 1 + number * done // 100, "uid": f"uid{number}", "row": f"train-{number}", "tag": tag}
    known = str(count) if gold else None
    return facts | {"text": f"How many {tag}?", "gold": known, "images": [image], "agents": rows}
