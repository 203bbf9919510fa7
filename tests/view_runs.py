"""Small run folders for the tests of `mmcorl view`, every number in them chosen by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

HOSTILE = "</pre><script>window.owned=1</script><img src=x onerror='window.owned=2'>\u2028\ud800"
CONFIG: dict[str, Any] = {
    "name": "small",
    "steps": 4,
    "agents": [{"name": "a", "model": "zoo:a"}, {"name": "b", "model": "zoo:b"}],
    "supervision": {"kind": "ring"},
    "optimizer": {"lr": 0.001},
}


def write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def append(path: Path, line: Mapping[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def step(number: int, reward: float = 0.5, agreement: float = 0.25) -> dict[str, Any]:
    """A line of metrics.jsonl."""
    agents = {name: {"reward_mean": reward, "entropy": 0.1 * number, "vote_share": 0.5} for name in "ab"}
    return {"step": number, "agents": agents, "cohort": {"agreement": agreement, "pairs": {"a|b": agreement}}}


def voted(a: Sequence[str | None], b: Sequence[str | None], **more: Any) -> dict[str, Any]:
    """What a line of votes.jsonl or probes.jsonl says of two agents that gave these answers."""

    def agent(answers: Sequence[str | None]) -> dict[str, Any]:
        given = [answer for answer in answers if answer is not None]
        counts = [[answer, given.count(answer)] for answer in dict.fromkeys(given)]
        counts.sort(key=lambda vote: -int(vote[1]))
        tie = len(counts) > 1 and counts[0][1] == counts[1][1]
        said = {"answers": list(answers), "votes": counts, "tie": tie}
        return said | {"samples": [f"I say {answer}" for answer in answers], "finish": ["stop"] * len(answers)}

    first, second = agent(a), agent(b)
    if not more.pop("probe", False):
        for own, peer, name in ((first, second, "b"), (second, first, "a")):
            vote = own["votes"][0][0] if own["votes"] else None
            own |= {"vote": vote, "label": peer["votes"][0][0] if peer["votes"] else None, "teacher": name}
            own["rewards"] = [0.0] * len(own["answers"])
    return more | {"agents": {"a": first, "b": second}}


def write_run(path: Path, *, probes: bool = True, **changes: Any) -> Path:
    """A run of two agents after 3 of 4 steps, with two probe prompts at steps 0 and 2, the second of them hostile."""
    (path / "gallery").mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(CONFIG | changes))
    write_lines(path / "metrics.jsonl", [step(number, 0.1 * number, 0.25 * number) for number in (1, 2, 3)])
    write_lines(
        path / "votes.jsonl",
        [
            voted(["4", "4"], ["4.0", "4.0"], step=1, uid="p1", row="alike"),
            voted(["4", "5"], ["6", "6"], step=2, uid="p2", row="tied"),
            voted(["7", None], ["8", "8"], step=3, uid="p3", row="apart"),
            voted(["9", "9"], ["9", "9"], step=3, uid="known", row="wrong together"),
        ],
    )
    evaluated = {name: {"accuracy": 0.5} for name in "ab"}
    write_lines(
        path / "validation.jsonl",
        [{"step": at, "set": "held_out", "agents": evaluated, "cohort": {"agreement": 0.5}} for at in (0, 2)],
    )
    write_lines(
        path / "responses.jsonl",
        [
            {"step": at, "set": "held_out", "agent": name, "id": "row v", "uid": "v", "response": f"{name} at {at}"}
            | {"answer": "3" if name == "a" else "2", "gold": "3", "finish_reason": "stop"}
            for at in (0, 2)
            for name in "ab"
        ],
    )
    Image.new("RGB", (30, 20), "green").save(path / "gallery" / "known_0.png")
    if probes:
        known = {"uid": "known", "row": "a probe", "text": "How many?", "gold": "8", "images": ["gallery/known_0.png"]}
        hostile = {"uid": "h", "row": HOSTILE, "text": HOSTILE, "gold": None, "images": ["../secret.png", "gallery/no"]}
        lines = []
        for at, a, b in ((0, ["9", "9"], ["9", "8"]), (2, ["8", "9"], ["8", "8"])):
            lines.append(voted(a, b, probe=True, step=at, set="held_out", **known))
            lines.append(voted([HOSTILE, None], [HOSTILE, HOSTILE], probe=True, step=at, set="held_out", **hostile))
        write_lines(path / "probes.jsonl", lines)
    return path
