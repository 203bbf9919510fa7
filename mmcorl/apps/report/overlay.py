"""Answers that are places, as shapes over a picture: for templates, in percent of the picture's sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mmcorl.answers.regions import SIDE, parse_places
from mmcorl.errors import UserError

Kind = Literal["other", "vote", "label", "known"]
MAX_PLACES = 100
"""Places of one answer that are drawn; its text has more of them."""
MAX_OTHERS = 32
"""Further answers of one agent that are drawn."""


@dataclass(frozen=True)
class Shapes:
    """One answer over a picture."""

    kind: Kind
    """Drawn thin, solid, dashed and dotted, so that they differ without colour, too."""
    colour: int | None
    """That of an agent; None for what no agent said."""
    title: str
    """Shown on hover."""
    points: Sequence[tuple[float, float]]
    """x and y."""
    boxes: Sequence[tuple[float, float, float, float]]
    """x, y, width and height."""
    width: float = 2.0
    """Of the line, in pixels: where agents say the same, all of them are seen."""


def shapes(gold: Any, agents: Mapping[str, Mapping[str, Any]], colours: Mapping[str, int]) -> list[Shapes]:
    """Return the answers of one prompt in drawing order: rare ones first, then votes, labels and the known answer.

    `agents`: by name, their part of a line of gallery.jsonl. An answer that is no place is left out; a label that is an
    agent's vote or the known answer is drawn as that.
    """
    elected = {
        name: next((str(vote[0]) for vote in record.get("votes") or () if len(vote) == 2), None)
        for name, record in agents.items()
    }
    others: list[Shapes | None] = []
    votes: list[Shapes | None] = []
    labels: list[Shapes | None] = []
    for place, (name, record) in enumerate(agents.items()):
        colour, vote = colours.get(name, 0), elected[name]
        rare = dict.fromkeys(str(one) for one in record.get("answers") or () if one is not None and str(one) != vote)
        others += [_shapes("other", colour, f"{name}: {answer}", answer, 1.0) for answer in list(rare)[:MAX_OTHERS]]
        votes.append(
            _shapes("vote", colour, f"{name}, vote: {vote}", vote, min(6.5, 0.5 + 1.5 * (len(agents) - place)))
        )
        label = record.get("label")
        if label is not None and str(label) not in (*elected.values(), str(gold)):
            labels.append(_shapes("label", colour, f"{name}, trained on: {label}", str(label)))
    known = _shapes("known", None, f"known answer: {gold}", None if gold is None else str(gold))
    return [one for one in (*others, *votes, *labels, known) if one is not None]


def in_words(gold: Any, agents: Mapping[str, Mapping[str, Any]], longest: int) -> str:
    """Return what is drawn as a text for those who do not see it; texts of places are cut to `longest`."""

    def cut(text: Any) -> str:
        shown = str(text)
        return shown if len(shown) <= longest else f"{shown[:longest]}…"

    said = ["no known answer" if gold is None else f"known answer {cut(gold)}"]
    for name, record in agents.items():
        votes = [vote for vote in record.get("votes") or () if len(vote) == 2]
        vote = f"vote {cut(votes[0][0])}" if votes else "no vote"
        label = record.get("label")
        said.append(f"{name}: {vote}, " + ("no label" if label is None else f"trained on {cut(label)}"))
    return "Places in thousandths of the picture's width and height. " + "; ".join(said)


def _shapes(kind: Kind, colour: int | None, title: str, answer: str | None, width: float = 2.0) -> Shapes | None:
    try:
        places = parse_places(answer) if answer is not None else ()
    except UserError:
        return None
    inside = [place for place in places[:MAX_PLACES] if all(0 <= value <= SIDE for value in place)]
    percent = [tuple(round(100 * value / SIDE, 3) for value in place) for place in inside]
    points = [(place[0], place[1]) for place in percent if len(place) == 2]
    boxes = [
        (place[0], place[1], round(place[2] - place[0], 3), round(place[3] - place[1], 3))
        for place in percent
        if len(place) == 4 and place[0] <= place[2] and place[1] <= place[3]
    ]
    return Shapes(kind, colour, title[:200], points, boxes, width) if points or boxes else None
