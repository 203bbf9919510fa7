"""Rows as people write them, in four layouts, with what a model has to read of each, written by hand."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapter_passes import noise

Parts = Sequence[str | int]
"""Words, and numbers of pictures."""
Said = Sequence[tuple[str, Parts]]
"""Turns: role and content."""

SIZES = ((84, 84), (112, 56), (56, 112))


def _png(number: int) -> bytes:
    file = io.BytesIO()
    noise(*SIZES[number], seed=number).save(file, "PNG")
    return file.getvalue()


PICTURES = tuple(_png(number) for number in range(len(SIZES)))
FILES = ("0.png", "1.png", "2.png")
URI = "data:image/png;base64," + base64.b64encode(PICTURES[1]).decode()
LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "text": {"question": "question", "image": "images", "choices": "options"},
    "verl": {"question": "prompt", "image": "images", "answer": "reward_model.ground_truth"},
    "sharegpt": {"question": "conversations", "image": "image", "answer": "conversations"},
    "openai": {"question": "messages", "answer": "messages"},
}
"""Columns of each layout, beside `id`."""


@dataclass(frozen=True)
class Case:
    layout: str
    row: Mapping[str, Any]
    read: Said = ()
    """What a model reads; nothing where the row is bad."""
    fault: str = ""
    """Kind of fault."""
    gold: str | None = None


def _text(question: str, images: int, *read: str | int, fault: str = "", options: Any = None) -> Case:
    row = {"question": question, "images": list(FILES[:images]), "options": options}
    return Case("text", row, [("user", read)] if read else (), fault)


def _turns(role: str, content: str, *said: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{role: who, content: what} for who, what in said]


def _verl(images: int, said: Sequence[tuple[str, Any]], read: Said = (), fault: str = "") -> Case:
    row = {"prompt": _turns("role", "content", *said), "images": list(FILES[:images]), "reward_model": {}}
    return Case("verl", row, read, fault)


def _sharegpt(image: Any, said: Sequence[tuple[str, str]], read: Said = (), fault: str = "", gold: Any = None) -> Case:
    return Case("sharegpt", {"conversations": _turns("from", "value", *said), "image": image}, read, fault, gold)


def _openai(said: Sequence[tuple[str, Any]], read: Said = (), fault: str = "", gold: Any = None) -> Case:
    return Case("openai", {"messages": _turns("role", "content", *said)}, read, fault, gold)


def _words(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _address(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


CASES: Mapping[str, Case] = {
    "in front": _text("<image>\nHow many dots?", 1, 0, "How many dots?"),
    "two in front": _text(" <image> <image>\n Which is wider?", 2, 0, 1, "Which is wider?"),
    "none has a place": _text("Which is taller?", 2, 0, 1, "Which is taller?"),
    "between words": _text("Compare <image> with <image>: why?", 2, "Compare ", 0, " with ", 1, ": why?"),
    "at the end": _text("Which one?\n<image>", 1, "Which one?\n", 0),
    "side by side": _text("Of <image><image> the larger?", 2, "Of ", 0, 1, " the larger?"),
    "on lines": _text("A:\n<image>\nB:\n<image>\nEqual?", 2, "A:\n", 0, "\nB:\n", 1, "\nEqual?"),
    "in front and later": _text("<image>\nLike <image>?", 2, 0, "\nLike ", 1, "?"),
    "beside a less-than": _text("If $a<b$: <image>, x<<image>>?", 2, "If $a<b$: ", 0, ", x<", 1, ">?"),
    "other scripts": _text("左图<image>与<image>和<image>？", 3, "左图", 0, "与", 1, "和", 2, "？"),
    "numbered": _text("Is <image1> wider than <image2>?", 2, "Is ", 0, " wider than ", 1, "?"),
    "numbered backwards": _text("Is <image2> wider than <image1>?", 2, "Is ", 1, " wider than ", 0, "?"),
    "numbered in front": _text("<image2><image1>Equal?", 2, 1, 0, "Equal?"),
    "numbered from 0": _text("Is <image0> or <image1> red?", 2, "Is ", 0, " or ", 1, " red?"),
    "numbered with a space": _text("Is <image 1> or <image 2> blue?", 2, "Is ", 0, " or ", 1, " blue?"),
    "names of parts": _text("<image1>\nOpposite to <image2>?", 1, 0, "<image1>\nOpposite to <image2>?"),
    "a place and a name": _text("<image>\nWhich side is <image3>?", 1, 0, "Which side is <image3>?"),
    "options": _text(
        *("Which is like <image>?", 3, "Which is like ", 0, "?\nA. ", 1, "\nB. ", 2), options=["<image>", "<image>"]
    ),
    "numbered options": _text(
        *("Which is like <image3>?", 3, "Which is like ", 2, "?\nA. ", 0, "\nB. ", 1),
        options={"A": "<image1>", "B": "<image2>"},
    ),
    "a place too few": _text("Compare <image> with this.", 2, fault="misplaced_image"),
    "a place too many": _text("Compare <image> with <image>.", 1, fault="misplaced_image"),
    "a place for nothing": _text("What is in <image>?", 0, fault="misplaced_image"),
    "a number twice": _text("Is <image1> <image2> or <image2>?", 2, fault="misplaced_image"),
    "numbers with a gap": _text("Is <image2> or <image4> red?", 2, fault="misplaced_image"),
    "nothing but a place": _text(" <image>\n", 1, fault="empty_question"),
    "system": _verl(
        2,
        [("system", "Be brief."), ("user", "Is <image> like <image>?")],
        [("system", ["Be brief."]), ("user", ["Is ", 0, " like ", 1, "?"])],
    ),
    "two turns": _verl(
        2,
        [("user", "<image>\nHow many?"), ("assistant", "3"), ("user", "And in <image>?")],
        [("user", [0, "\nHow many?"]), ("assistant", ["3"]), ("user", ["And in ", 1, "?"])],
    ),
    "two turns without places": _verl(
        1,
        [("user", "How many?"), ("assistant", "3"), ("user", "Why?")],
        [("user", [0, "How many?"]), ("assistant", ["3"]), ("user", ["Why?"])],
    ),
    "an image alone after turns": _verl(
        2,
        [("user", "<image>"), ("assistant", "red"), ("user", "<image>")],
        [("user", [0]), ("assistant", ["red"]), ("user", [1])],
    ),
    "an image in an answer": _verl(
        3,
        [("user", "Draw."), ("assistant", "So: <image>, <image>"), ("user", "Like <image>?")],
        [("user", ["Draw."]), ("assistant", ["So: ", 0, ", ", 1]), ("user", ["Like ", 2, "?"])],
    ),
    "an empty system message and an answer": _verl(
        1, [("system", ""), ("user", "Sum of <image>?"), ("assistant", "7")], [("user", ["Sum of ", 0, "?"])]
    ),
    "two users": _verl(1, [("user", "<image>"), ("user", "How many?")], fault="bad_chat"),
    "a tool": _verl(0, [("user", "How many?"), ("tool", "3"), ("user", "Sure?")], fault="bad_chat"),
    "a place too few in turns": _verl(
        2, [("user", "<image>How many?"), ("assistant", "3"), ("user", "Why?")], fault="misplaced_image"
    ),
    "a conversation": _sharegpt(
        FILES[0],
        [
            ("system", "Count."),
            ("human", "<image>\nDots?"),
            ("gpt", "4"),
            ("human", "Twice?"),
            ("gpt", "It is \\boxed{8}"),
        ],
        [("system", ["Count."]), ("user", [0, "\nDots?"]), ("assistant", ["4"]), ("user", ["Twice?"])],
        gold="8",
    ),
    "a question and its answer": _sharegpt(
        list(FILES[:2]),
        [("human", "Is <image> or <image> red?"), ("gpt", "the second")],
        [("user", ["Is ", 0, " or ", 1, " red?"])],
        gold="the second",
    ),
    "the model begins": _sharegpt(FILES[0], [("gpt", "Hello."), ("human", "<image>?")], fault="bad_chat"),
    "parts": _openai(
        [("user", [_words("Is "), _address(URI), _words(" like "), {"type": "image", "image": FILES[0]}, _words("?")])],
        [("user", ["Is ", 1, " like ", 0, "?"])],
    ),
    "parts in front": _openai(
        [("developer", "Look."), ("user", [_address(URI), _words("How many?")]), ("assistant", [_words("5")])],
        [("system", ["Look."]), ("user", [1, "How many?"])],
        gold="5",
    ),
    "words apart": _openai(
        [("user", [_words("How many"), _words("dots?"), {"type": "input_image", "image_url": URI}])],
        [("user", ["How many dots?", 1])],
    ),
    "parts in turns": _openai(
        [
            ("user", [_words("This: "), {"type": "image", "url": FILES[2]}]),
            ("assistant", [_words("Yes?")]),
            ("user", [_words("And "), {"type": "image", "base64": URI.partition(",")[2]}, _words("?")]),
        ],
        [("user", ["This: ", 2]), ("assistant", ["Yes?"]), ("user", ["And ", 1, "?"])],
    ),
    "cut base64": _openai([("user", [_words("This? "), _address(URI[:-3] + "*")])], fault="corrupt_image"),
    "an address": _openai([("user", [_words("This? "), _address("https://a.b/c.png")])], fault="image_address"),
    "a video": _openai([("user", [_words("This? "), {"type": "video", "video": "a.mp4"}])], fault="bad_chat"),
    "a place among parts": _openai([("user", [_words("This <image>? "), _address(URI)])], fault="misplaced_image"),
}


def write_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """Write the rows of each layout into a file, the pictures beside them; return their data settings."""
    for name, picture in zip(FILES, PICTURES, strict=True):
        (folder / name).write_bytes(picture)
    settings = {}
    for layout, columns in LAYOUTS.items():
        rows = [{"id": name, **case.row} for name, case in CASES.items() if case.layout == layout]
        file = folder / f"{layout}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        settings[layout] = {"source": str(file), "columns": {"id": "id", **columns}, "images": "optional"}
    return settings
