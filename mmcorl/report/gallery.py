"""The gallery of a report: prompts with their images as data URIs and their answers as counts."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from mmcorl.run.reader import Record, RunFiles, mapping, number

MAX_ENTRIES = 40
MAX_TEXT = 4000
MAX_ANSWER = 60
MAX_BARS = 6
MAX_IMAGE_BYTES = 300_000
LONG_SIDE = 768
MIME = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp"}


@dataclass(frozen=True)
class Cut:
    """A text and the number of characters cut off its end."""

    text: str
    left_out: int = 0


@dataclass(frozen=True)
class Picture:
    """An image as a data URI, or the reason why it is not shown."""

    uri: str | None
    width: int = 0
    height: int = 0
    problem: str | None = None
    tiny: bool = False
    """Whether to enlarge it, pixel by pixel."""


@dataclass(frozen=True)
class Bar:
    """How many completions gave one answer."""

    answer: Cut
    count: float
    percent: float
    equals_gold: bool = False
    is_label: bool = False
    is_rest: bool = False
    """Completions without an answer, or all rarer answers."""


@dataclass(frozen=True)
class AgentAnswers:
    """One agent's answers to one prompt, and its label."""

    agent: str
    colour: int
    bars: Sequence[Bar]
    tie: bool
    label: Cut | None
    label_equals_gold: bool | None
    teacher: str | None
    sample: Cut | None


@dataclass(frozen=True)
class Entry:
    """One prompt of the gallery."""

    step: object
    row: str
    tag: str | None
    question: Cut
    gold: Cut | None
    pictures: Sequence[Picture] = ()
    agents: Sequence[AgentAnswers] = field(default_factory=tuple)


def gallery_entries(run: RunFiles, colours: Mapping[str, int]) -> list[Entry]:
    """Return at most MAX_ENTRIES entries, spread evenly over the run and in its order."""
    records = list(run.gallery)
    if len(records) > MAX_ENTRIES:
        stride = (len(records) - 1) / (MAX_ENTRIES - 1)
        records = [records[round(index * stride)] for index in range(MAX_ENTRIES)]
    return [_entry(run.path, record, colours) for record in records]


def picture(run_dir: Path, name: str) -> Picture:
    """Return one image of the run folder, scaled down when large; a problem when it is outside the folder."""
    path = (run_dir / name).resolve()
    if not path.is_relative_to(run_dir.resolve()):
        return Picture(None, problem=f"{name} lies outside the run folder")
    if not path.is_file():
        return Picture(None, problem=f"{name} is missing")
    data = path.read_bytes()
    try:
        with Image.open(io.BytesIO(data)) as image:
            kind, (width, height) = image.format, image.size
            if kind not in MIME or len(data) > MAX_IMAGE_BYTES:
                kind, data = "JPEG", _smaller(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        return Picture(None, problem=f"{name} cannot be read ({error})")
    uri = f"data:{MIME[kind]};base64,{base64.b64encode(data).decode('ascii')}"
    return Picture(uri, width, height, tiny=max(width, height) <= 112)


def _smaller(image: Image.Image) -> bytes:
    copy = image.convert("RGB")
    copy.thumbnail((LONG_SIDE, LONG_SIDE))
    buffer = io.BytesIO()
    copy.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def _entry(run_dir: Path, record: Record, colours: Mapping[str, int]) -> Entry:
    gold = record.get("gold")
    agents = mapping(record.get("agents"))
    return Entry(
        step=record.get("step"),
        row=str(record.get("row") or record.get("uid") or ""),
        tag=None if record.get("tag") is None else str(record["tag"]),
        question=_cut(record.get("text") or "", MAX_TEXT),
        gold=None if gold is None else _cut(gold, MAX_ANSWER),
        pictures=[picture(run_dir, str(name)) for name in record.get("images") or ()],
        agents=[_answers(str(agent), mapping(shown), gold, colours) for agent, shown in agents.items()],
    )


def _answers(agent: str, record: Record, gold: Any, colours: Mapping[str, int]) -> AgentAnswers:
    label = record.get("label")
    sample = record.get("sample")
    return AgentAnswers(
        agent=agent,
        colour=colours.get(agent, 0),
        bars=_bars(record, gold, label),
        tie=bool(record.get("tie")),
        label=None if label is None else _cut(label, MAX_ANSWER),
        label_equals_gold=None if label is None or gold is None else _same(label, gold),
        teacher=None if record.get("teacher") is None else str(record["teacher"]),
        sample=None if sample is None else _cut(sample, MAX_TEXT),
    )


def _bars(record: Record, gold: Any, label: Any) -> list[Bar]:
    votes = [(str(vote[0]), number(vote[1]) or 0.0) for vote in record.get("votes") or () if len(vote) == 2]
    answers = record.get("answers") or ()
    total = max(float(len(answers)), sum(count for _, count in votes), 1.0)
    votes.sort(key=lambda vote: -vote[1])
    bars = [
        Bar(
            _cut(answer, MAX_ANSWER),
            count,
            100 * count / total,
            equals_gold=gold is not None and _same(answer, gold),
            is_label=label is not None and _same(answer, label),
        )
        for answer, count in votes[:MAX_BARS]
    ]
    rarer = votes[MAX_BARS:]
    if rarer:
        count = sum(count for _, count in rarer)
        bars.append(Bar(Cut(f"{len(rarer)} other answers"), count, 100 * count / total, is_rest=True))
    none = sum(answer is None for answer in answers)
    if none:
        bars.append(Bar(Cut("no answer"), none, 100 * none / total, is_rest=True))
    return bars


def _same(answer: Any, other: Any) -> bool:
    """Return whether two answers are spelled alike; the vote's relation is wider, as the page says."""
    return str(answer).strip() == str(other).strip()


def _cut(text: Any, limit: int) -> Cut:
    text = str(text)
    return Cut(text[:limit], max(0, len(text) - limit))
