"""One prompt of a run: every agent's votes over time, and its responses side by side."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import asdict
from typing import Any

from mmcorl.report.page import clean
from mmcorl.report.places import in_words, shapes
from mmcorl.run.reader import Record, number
from mmcorl.view.logs import parsed
from mmcorl.view.prompts import Prompts, agents_of, choices_of, list_of, short_of, text_of

MOST_TEXT = 20_000
"""Characters of a text that are sent."""
MOST_LINES = 500
"""Lines of one log about one prompt that are shown."""
MOST_BARS = 12


class OnePrompt:
    """Everything that the logs of a run say about one prompt."""

    def __init__(self, prompts: Prompts, uid: str):
        self.prompts, self.uid = prompts, uid
        self.asked = prompts.known.get(uid, {})
        """Its text and pictures, where a log has them."""
        self.gold: str | None = None

    def content(self, step: int | None = None) -> dict[str, Any]:
        """Return votes at every step, and the texts of the probes at one (the last there is up to `step`)."""
        asked, probed = self.asked, self.prompts.probed.get(self.uid, {})
        steps = sorted(probed)[-MOST_LINES:]
        at = max((one for one in steps if step is not None and one <= step), default=steps[-1] if steps else None)
        probes = {one: self._line("probes.jsonl", *probed[one]) for one in steps}
        votes, evaluated = self._about("votes.jsonl"), self._about("responses.jsonl")
        named = [asked, *votes, *evaluated]
        self.gold = next((text_of(one["gold"]) for one in reversed(named) if one.get("gold") is not None), None)
        shown = probes[at] if at is not None else {}
        pictures = [self.prompts.found.address(str(name)) for name in list_of(asked.get("images"))]
        return {
            "uid": clean(self.uid),
            "row": clean(str(next((one[key] for one in named for key in ("row", "id") if key in one), self.uid))),
            "gold": short_of(self.gold),
            "said": self._said(),
            "choices": [clean(one)[:MOST_TEXT] for one in choices_of(asked) or ()],
            "tag": None if asked.get("tag") is None else clean(str(asked["tag"])),
            "pictures": [one for one in pictures if one is not None],
            "places": self._places(shown or (votes[-1] if votes else {})),
            "steps": steps,
            "at": at,
            "probes": [self._votes(line) for line in probes.values()],
            "samples": {clean(name): self._samples(agent) for name, agent in agents_of(shown)},
            "training": [self._votes(line) for line in votes],
            "gallery": [
                {
                    "step": line.get("step"),
                    "agents": {clean(name): cut(agent.get("sample")) for name, agent in agents_of(line)},
                }
                for line in self._about("gallery.jsonl")
            ],
            "evaluations": [self._evaluated(line) for line in evaluated],
        }

    def _samples(self, agent: Record) -> list[dict[str, Any]]:
        """Return the completions of an agent at one step of the probes."""
        columns = [list_of(agent.get(key)) for key in ("samples", "answers", "finish")]
        return [
            {
                "text": cut(text),
                "answer": short_of(text_of(answer)),
                "right": self._right(text_of(answer)),
                "finish": clean(str(finish)),
            }
            for text, answer, finish in zip(*columns, strict=False)
        ]

    def _evaluated(self, line: Record) -> dict[str, Any]:
        """Return an agent's greedy response in one evaluation."""
        answer = text_of(line.get("answer"))
        return {
            "step": line.get("step"),
            "set": clean(str(line.get("set"))),
            "agent": clean(str(line.get("agent"))),
            "answer": short_of(answer),
            "right": line["right"] if isinstance(line.get("right"), bool) else self._right(answer),
            "text": cut(line.get("response")),
            "finish": clean(str(line.get("finish_reason"))),
        }

    def _right(self, answer: str | None) -> bool | None:
        if self.gold is None or answer is None:
            return None
        return bool(self.prompts.same(answer, self.gold, choices_of(self.asked)))

    def _votes(self, line: Record) -> dict[str, Any]:
        """Return one line of votes or probes: by agent its counts, tie, label and completions without an answer."""
        agents: dict[str, Any] = {}
        for name, agent in agents_of(line):
            votes = [vote for vote in list_of(agent.get("votes")) if isinstance(vote, list) and len(vote) == 2]
            answers, label = list_of(agent.get("ballots")) or list_of(agent.get("answers")), text_of(agent.get("label"))
            agents[clean(name)] = {
                "votes": [
                    {
                        "answer": short_of(str(answer)),
                        "count": int(number(count) or 0),
                        "right": self._right(str(answer)),
                    }
                    for answer, count in votes[:MOST_BARS]
                ],
                "rarer": sum(int(number(count) or 0) for _, count in votes[MOST_BARS:]),
                "none": sum(answer is None for answer in answers),
                "total": len(answers),
                "tie": bool(agent.get("tie")),
                "label": short_of(label),
                "label_right": self._right(label),
                "teacher": short_of(text_of(agent.get("teacher"))),
            }
        return {"step": line.get("step"), "agents": agents}

    def _said(self) -> list[dict[str, Any]]:
        """Return who says what: system message, earlier turns, question."""
        asked = self.asked
        said = [("System", asked["system"])] if asked.get("system") else []
        for turn in list_of(asked.get("turns")):
            said += zip(("User", "Assistant"), list_of(turn), strict=False)
        if asked.get("text") is not None:
            said.append(("User", asked["text"]))
        return [{"role": role, "text": cut(text)} for role, text in said]

    def _places(self, line: Record) -> dict[str, Any] | None:
        """Return answers that are places as shapes over the first picture, in percent of its sides."""
        run = self.prompts.run
        if run.relation is None or run.relation.form is None:
            return None
        agents = dict(agents_of(line))
        drawn = shapes(self.gold, agents, {name: place for place, name in enumerate(run.agents)})
        return {
            "shapes": [asdict(one) | {"title": clean(one.title)} for one in drawn],
            "words": clean(in_words(self.gold, agents, 60)),
        }

    def _line(self, name: str, offset: int, length: int) -> Record:
        try:
            with (self.prompts.found.path / name).open("rb") as file:
                file.seek(offset)
                return parsed(file.read(length)) or {}
        except OSError:
            return {}

    def _about(self, name: str) -> list[Record]:
        """Return the last lines of a log that are about the prompt: without an index, which may outgrow memory."""
        needle, log = json.dumps(self.uid).encode(), self.prompts.found.path / name
        if not log.is_file():  # to open a pipe would wait for who writes to it
            return []
        try:
            with log.open("rb") as file:
                lines = deque((line for line in file if needle in line), maxlen=MOST_LINES)
        except OSError:
            return []
        return [line for one in lines if (line := parsed(one)) is not None and str(line.get("uid")) == self.uid]


def cut(text: Any) -> dict[str, Any]:
    """Return a text of at most MOST_TEXT characters and the number that is left out."""
    shown = clean("" if text is None else str(text))
    return {"text": shown[:MOST_TEXT], "left_out": max(0, len(shown) - MOST_TEXT)}
