"""Natural tasks: pools that share nothing, rows that are distinct, set by their seed and right."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from string import digits

import matplotlib
import numpy as np
import pytest
from num2words import num2words
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from eval_suite.benchmarks.custom_data import held_out, origin_of
from eval_suite.benchmarks.tasks import parse_benchmarks
from mmcorl.apps.demos.habits import Examples
from mmcorl.apps.demos.zoo import NATURAL, RECIPE, RECIPES, TAUGHT, TEACH_FROM, parse
from mmcorl.apps.init.template import agent_names
from mmcorl.cli.eval import COMMANDS
from mmcorl.errors import UserError
from mmcorl.synthetic.perception import PictureRow
from mmcorl.synthetic.rows import TASKS, Kind, distinct_rows, prompt_corpus, response, row, wrong_response
from mmcorl.system.cache import made_name

# Written down once: a change of these breaks every cached model and published number. Of rows 0 to 39 of seed 1.
DIGESTS = {"handwriting": "9057d0a2b52b", "typefaces": "2c090ea31637", "numbers": "b5ea74888a4b"}
SETS = {"handwriting": 10, "typefaces": 3, "numbers": 10}
"""Sets of examples that share none."""


def _rows(kind: Kind, seed: int, count: int) -> list[PictureRow]:
    return [TASKS[kind].row(seed, index) for index in range(count)]


def _signs(rows: Iterable[PictureRow]) -> set[object]:
    """Return what rows are made from: each half's label and ink, a number in words."""
    signs: set[object] = set()
    for item in rows:
        if item.image is None:
            signs.add(item.question)
            continue
        picture = Image.open(io.BytesIO(item.image)).convert("L")
        for place, label in enumerate(item.answer):
            half = picture.crop((28 * place, 0, 28 * place + 28, 56))
            signs.add((label, half.crop(half.getbbox()).tobytes()))
    return signs


@pytest.mark.parametrize("kind", TASKS)
def test_rows_are_distinct_and_depend_on_seed_and_number_only(kind: Kind) -> None:
    for seed in (0, 1):
        shown = [(item.question, item.image) for item in _rows(kind, seed, 400)]
        assert len(set(shown)) == 400 <= distinct_rows(kind, ())
        again = [(item.question, item.image) for item in _rows(kind, seed + 2, 40)]
        assert again != shown[:40]
    assert row(kind, 1, 7, draw=False).answer == row(kind, 1, 7).answer
    written = "".join(f"{question} {hashlib.sha256(image or b'').hexdigest()}" for question, image in shown[:40])
    assert hashlib.sha256(written.encode()).hexdigest()[:12] == DIGESTS[kind]


@pytest.mark.parametrize("kind", TASKS)
def test_what_is_taught_trained_on_and_tested_on_shares_nothing(kind: Kind) -> None:
    lessons = [_signs(TASKS[kind].lesson(number, 300)) for number in range(1, SETS[kind] + 1)]
    trained, tested = (_signs(_rows(kind, seed, 300) + _rows(kind, seed + 2, 300)) for seed in (0, 1))
    assert all(pair[0].isdisjoint(pair[1]) for pair in combinations([*lessons, trained, tested], 2))
    # Further sets are dealt from the same examples.
    assert _signs(TASKS[kind].lesson(SETS[kind] + 1, 300)).isdisjoint(trained | tested)


def test_numbers_are_those_of_their_words() -> None:
    for item in _rows("numbers", 1, 2000):
        written = num2words(int(item.answer)).replace(",", "")
        assert item.question == f"Write {written} in digits."


def test_figures_are_those_of_their_places() -> None:
    """The mean of all typefaces at a figure's place looks most like that figure of DejaVu Sans, drawn here."""
    atlas = Image.open(io.BytesIO((files("mmcorl.synthetic") / "typefaces.png").read_bytes())).convert("L")
    cells = np.asarray(atlas, dtype=float).reshape(-1, 16, 10, 16)
    font = ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", 18)
    drawn = []
    for figure in digits:
        image = Image.new("L", (16, 16))
        ImageDraw.Draw(image).text((8, 15), figure, fill=255, font=font, anchor="ms")
        drawn.append(np.asarray(image, dtype=float).ravel())
    means = cells.mean(0).transpose(1, 0, 2).reshape(10, 256)
    alike = np.corrcoef(means, drawn)[:10, 10:]
    assert [digits[place] for place in alike.argmax(1)] == [*digits]


@pytest.mark.parametrize(("kind", "least"), [("handwriting", 0.96), ("typefaces", 0.65)])
def test_a_label_is_that_of_what_looks_most_alike_in_another_pool(kind: Kind, least: float) -> None:
    """By the correlation of each half's pixels with those of training rows; 98 % is known of the digits."""
    known, unseen = _halves(_rows(kind, 0, 600)), _halves(_rows(kind, 1, 200))
    alike = np.corrcoef(unseen[0], known[0])[: len(unseen[0]), len(unseen[0]) :]
    nearest = np.array(known[1])[alike.argmax(1)]
    assert (nearest == np.array(unseen[1])).mean() > least


def _halves(rows: Iterable[PictureRow]) -> tuple[list[NDArray[np.float64]], list[str]]:
    """Return the pixels and the label of both halves of each picture."""
    pixels, labels = [], []
    for item in rows:
        assert item.image is not None
        picture = np.asarray(Image.open(io.BytesIO(item.image)).convert("L"), dtype=float)
        pixels += [picture[14:42, :28].ravel(), picture[14:42, 28:].ravel()]
        labels += item.answer
    return pixels, labels


def test_every_typeface_is_listed_with_a_licence_that_lets_it_be_shown() -> None:
    folder = files("mmcorl.synthetic")
    with (folder / "typefaces.tsv").open(encoding="utf-8", newline="") as file:
        listed = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    with Image.open(io.BytesIO((folder / "typefaces.png").read_bytes())) as atlas:
        assert atlas.size == (10 * 16, 16 * len(listed))
    assert len({face["typeface"] for face in listed}) == len(listed) >= 58
    assert {face["licence"] for face in listed} == {"OFL-1.1", "Apache-2.0"}
    assert all(len(face["sha256"]) == 64 and face["copyright"] for face in listed)


def test_natural_names_are_known_wherever_zoo_names_are() -> None:
    assert [made_name(model) for model in ("zoo:qwen2@1", "natural:qwen2-numbers", "a/b", "C:\\x", "zoo")] == [
        *("qwen2@1", "qwen2-numbers"),
        *(None, None, None),
    ]
    assert agent_names(["natural:qwen2-numbers", "natural:llama-numbers,examples=2"]) == ["qwen", "llama"]
    assert parse("natural:llama-numbers,examples=2@3") == ("natural:llama-numbers", 3, Examples(2))
    for kind in TASKS:
        entries = {entry.family for entry in NATURAL.values() if entry.kind == kind}
        assert len(entries) >= 3
        assert f"natural:{kind}" in parse_benchmarks([f"natural:{kind}"], own_rows=True).values()
        assert held_out(f"natural_{kind}") == ("seed=1", "size=400")
        assert len(prompt_corpus(kind)) > 20
    with pytest.raises(UserError, match="did you mean 'natural:numbers'"):
        parse_benchmarks(["natural:number"], own_rows=True)
    with pytest.raises(UserError, match="did you mean 'natural:qwen2-numbers'"):
        parse("natural:qwen2-number")


def test_an_evaluation_says_where_its_problems_are_from_as_one_would_type_it() -> None:
    origin = origin_of("natural_numbers", "natural:numbers", 400, ())
    assert (
        origin == "400 rows of natural:numbers, which demo runs hold out; short answers, so up to 256 tokens by default"
    )
    changed = origin_of("natural_numbers", "natural:numbers", 9, ("seed=3", "size=9"))
    assert changed.startswith("9 rows of natural:numbers, with 'seed=3 size=9'; ")  # which is no --seed of sampling
    for said in (origin, changed):
        assert COMMANDS["eval"].as_typed(said) == said
    assert origin_of("mine", "rows.jsonl", 3, ()) == "your own rows, from rows.jsonl"


LESSONS: dict[Kind, str] = {
    "visual": "0d8dac8ff11e",
    "text": "f7b0505391dd",
    "grounding": "4f0f4ae8800d",
    "ocr": "dcc46bc15188",
    "counting": "3d20c0690cf7",
    "handwriting": "d9f8828b092d",
    "typefaces": "122fc3f028d5",
    "numbers": "0ef9dd7c93ad",
}
"""Digests of what tiny models are taught."""


def test_a_lesson_that_changes_has_another_version() -> None:
    """Taught models are found by their recipe: another lesson under its version would be read from an old cache."""
    for kind, digest in LESSONS.items():
        recipe = TAUGHT.get(kind) or RECIPES.get(kind, RECIPE)
        rows = TASKS[kind].lesson(1, 24) if kind in TASKS else [row(kind, 0, TEACH_FROM + n) for n in range(24)]
        taught = hashlib.sha256(repr((recipe.version, prompt_corpus(kind))).encode())
        for each in rows:
            pixels = np.asarray(Image.open(io.BytesIO(each.image))).tobytes() if each.image else b""
            taught.update(repr((each.question, response(each), wrong_response(each))).encode() + pixels)
        said = "if this is taught otherwise than before, raise the version of its Recipe in zoo.py, then write"
        assert taught.hexdigest()[:12] == digest, f"{kind}: {said} {taught.hexdigest()[:12]} here"
