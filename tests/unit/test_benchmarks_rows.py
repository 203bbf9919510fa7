"""Benchmarks row by row: every odd row the files reproduce, prompts, golds, official sub-scores."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from PIL import Image

from eval_suite.grading import Grader, Reference
from eval_suite.items import Item
from eval_suite.tasks import BENCHMARKS
from eval_suite.tasks.gpqa import shown_order
from eval_suite.tasks.mathverse import gold_of
from eval_suite.tasks.mmlu import GROUPS
from eval_suite.tasks.scibench import split_power
from mmcorl.errors import UserError
from paths import FIXTURES

PICTURES = ("mathvision", "mathverse", "mathvista", "wemath")
TEXTS = ("gsm8k", "math500", "amc", "minerva", "gpqa_diamond", "mmlu", "scibench")


@cache
def items_of(name: str) -> dict[str, Item]:
    (source,) = FIXTURES.glob(f"{name}.*")
    return {item.id: item for item in BENCHMARKS[name].load(source).items}


def row(name: str, key: str) -> Item:
    """An item by id; `#2` is the third item; `=440` the first of a group."""
    items = items_of(name)
    if key.startswith("#"):
        return list(items.values())[int(key[1:])]
    return next(item for item in items.values() if item.group == key[1:]) if key.startswith("=") else items[key]


@pytest.fixture(scope="module")
def credited() -> Iterator[Callable[[Item, str], bool]]:
    with Grader() as grader:
        yield lambda item, answer: grader.grade(f"<answer>{answer}</answer>", Reference.of(item)).rule


@pytest.mark.parametrize("name", [*PICTURES, *TEXTS])
def test_the_gold_of_every_row_is_right(name: str, credited: Any) -> None:
    for item in items_of(name).values():
        assert credited(item, item.gold), item.id
        sizes = [Image.open(io.BytesIO(image)).size for image in item.images]
        assert sizes == ([(96, 64)] if name in PICTURES else [])
        if item.choices:
            assert all(item.choices[ord(letter) - ord("A")] for letter in item.gold.split(", "))


# Benchmark, row, field, value.
FIELDS: list[tuple[str, str, str, Any]] = [
    ("mathvision", "654", "gold", "E"),
    ("mathvision", "742", "gold", "D"),
    ("mathvision", "742", "choices", ("A", "B", "C", "E", "Impossible to say")),
    ("mathvision", "761", "gold", "D"),
    ("mathvision", "941", "gold", "D"),
    ("mathvision", "1893", "gold", "A"),
    ("mathvision", "1843", "choices", ("1 and 3", "1 and 5", "2 and 4", "2 and 4", "3 and 5")),
    ("mathvision", "1843", "gold", "E"),
    ("mathvision", "2653", "choices", tuple(f"<image{number}>" for number in range(2, 7))),
    ("mathvision", "2653", "question", "What comes next after <image1>?\nChoices:\n"
     "(A) <image2>\n(B) <image3>\n(C) <image4>\n(D) <image5>\n(E) <image6>"),
    ("mathvision", "2521", "question", "How many squares are there?"),
    ("mathvision", "528", "question", "Answer the question shown in the image."),
    ("mathvision", "59", "choices", None),
    ("mathvision", "59", "gold", "C"),  # a letter without options
    ("mathvision", "2521", "gold", "11"),
    ("mathvision", "2828", "gold", "\\frac{16}{7}"),
    ("mathvision", "2830", "gold", "\\frac{36}{13}"),  # stored with a form feed for \f
    ("mathvision", "2937", "gold", "1:2"),
    ("mathvision", "2947", "gold", "69 degrees"),
    ("mathvision", "2955", "gold", "(3,-4)"),
    ("mathvision", "3007", "gold", "8\\sqrt{3} squareinches"),
    ("mathverse", "5", "question", "Answer the question shown in the image."),  # Vision Only
    ("mathverse", "5", "choices", ("40°", "60°", "120°", "140°")),
    ("mathverse", "=521", "gold", "B"),  # stored as (B)
    ("mathverse", "=525", "gold", "F"),
    ("mathverse", "=440", "gold", "C, D"),  # stored as two lines
    ("mathverse", "=429", "gold", "B"),  # stored as False
    ("mathverse", "=339", "gold", "A"),  # stored as 090^\circ T
    ("mathverse", "=622", "gold", "C"),  # option B is empty
    ("mathverse", "=719", "choices", ("1:2", "1:8", "1:64")),
    ("mathvista", "2", "question", "Hint: Please answer the question requiring an integer answer and provide the final "
     "value, e.g., 1, 2, 3, at the end.\nQuestion: How old is the older of the two? (Unit: years)"),
    ("mathvista", "9", "gold", "B"),
    ("mathvista", "10", "gold", "E"),
    ("mathvista", "1", "precision", 1),
    ("mathvista", "900", "precision", 2),
    ("mathvista", "2", "unit", "years"),
    ("mathvista", "506", "gold", "[2014, 2016]"),
    ("wemath", "94", "choices", ("Yes, by 90 degrees around point O.", "Yes, by 45 degrees around point O.", "No.", "",
     "", "No correct answer")),
    ("wemath", "817", "choices", ("①; ③", "②; ③", "②; ④", "①; ④", "No correct answer")),
    ("wemath", "102", "choices", ("It moves to get Shape C.", "It turns to get Shape C.", "No correct answer")),
    ("wemath", "9", "choices", ("F", "D", "B", "I", "No correct answer")),
    ("wemath", "43", "choices", ("40°, 90°", "40°, 60°", "40°, 50°", "40°, 50°", "No correct answer")),
    ("wemath", "1118", "choices", ("45°", "60°", "120°", "No correct answer")),
    ("wemath", "1287", "choices", ("4", "3", "2", "1", "No correct answer")),
    ("wemath", "1371", "choices", ("Equal", "EDG is twice triangle BEG.", "EDG is twice triangle BEG.",
     "Cannot be determined")),
    ("gsm8k", "#0", "gold", "18"),
    ("gsm8k", "#1", "gold", "1450"),
    ("gsm8k", "#2", "gold", "-3"),
    ("math500", "#0", "id", "test/precalculus/1.json"),
    ("math500", "#0", "gold", "\\left( 3, \\frac{\\pi}{2} \\right)"),
    ("amc", "0", "gold", "142"),
    ("amc", "1", "gold", "-3"),
    ("mmlu", "#0", "gold", "C"),
    ("mmlu", "#1", "gold", "A"),
    *[("scibench", f"#{n}", "gold", gold) for n, gold in enumerate(
        ["5.51 \\times 10^{14}", "7 \\times 10^{7}", "89034.79", "-1.642876", "2.5", "2.5"])],
    ("scibench", "#0", "question",
     "What is the threshold frequency? The unit of the answer is $\\mathrm{~Hz}$."),
    ("scibench", "#3", "question", "What is the slope?"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "key", "field", "value"), FIELDS)
def test_fields(name: str, key: str, field: str, value: Any) -> None:
    assert getattr(row(name, key), field) == value


@pytest.mark.parametrize(
    ("name", "key", "ends"),
    [
        ("mathvista", "272", "the clock show?\nChoices:\n(A) 9:30\n(B) 1:30\n(C) 4:30\n(D) 5:30\n(E) 11:30"),
        ("wemath", "94", "(C) No.\n(F) No correct answer"),
        ("mmlu", "#0", "Choices:\n(A) 4\n(B) 6\n(C) 7\n(D) 9"),
        ("scibench", "#2", "The unit of the answer is \\$."),
    ],
)
def test_prompts_end_with_the_options_or_the_unit(name: str, key: str, ends: str) -> None:
    assert row(name, key).question.endswith(ends)


# Benchmark, row, answers that are right, answers that are wrong. Letters in range are labels before they are values.
CREDIT = [
    ("mathvision", "742", ["D"], ["E", "A"]),
    ("mathvision", "761", ["D", "H"], ["A"]),  # H: the value of option D, no letter in range
    ("mathvision", "1893", ["A"], ["B"]),
    ("mathvision", "2830", ["36/13"], []),
    ("mathvision", "2947", ["69"], []),
    ("mathvision", "3007", ["8\\sqrt{3}"], []),
    ("mathvision", "2828", ["16/7"], []),
    ("mathvision", "2937", ["1:2"], []),
    ("mathverse", "5", ["140°"], ["120°"]),
    ("mathverse", "=440", ["C, D", "D and C"], ["C"]),
    ("mathverse", "=719", ["1:64"], []),
    ("mathvista", "781", ["C", "D", "18"], ["A", "B"]),  # the gold stands twice
    ("mathvista", "740", ["A"], ["B", "C", "D"]),
    ("mathvista", "587", ["B"], ["A", "C", "D"]),
    ("mathvista", "9", ["No"], ["Yes"]),
    ("mathvista", "1", ["1.22"], ["1.26"]),  # rounded to one decimal: 1.2, 1.3
    ("mathvista", "900", ["51.041"], ["51.05"]),
    ("mathvista", "2", ["14 years"], []),
    ("wemath", "9", ["B"], ["D", "C"]),  # A. F; B. D; C. B; D. I
    ("gsm8k", "#1", ["1,450"], []),
    ("gpqa_diamond", "rec1", ["the neutrino"], ["the muon"]),
    ("gpqa_diamond", "#1", ["2"], ["4"]),
    # Five per cent of 5.51e14 is 0.2755e14.
    ("scibench", "#0", ["5.7 \\times 10^{14}", "5.25e14"], ["5.8 \\times 10^{14}", "5.51"]),
]


@pytest.mark.parametrize(("name", "key", "right", "wrong"), CREDIT)
def test_credit(name: str, key: str, right: list[str], wrong: list[str], credited: Any) -> None:
    assert [credited(row(name, key), answer) for answer in [*right, *wrong]] == [True] * len(right) + [False] * len(
        wrong
    )


@pytest.mark.parametrize(
    ("stored", "gold", "plain"),
    [
        ("Circumference $=50.27 \\mathrm{~cm}$", "50.27 \\mathrm{~cm}", "50.27"),
        ("$$r=7.00$$", "r=7.00", "7"),
        ("slope =-4", "-4", "-4"),
        ("Area $=\\frac{121 \\pi}{4} \\mathrm{~m}^{2}$", "\\frac{121 \\pi}{4} metre^{2}", "\\frac{121\\pi}{4}"),
        ("12x^2+144x+384 \\mathrm{m}^3", "12x^2+144x+384 metre^3", "12(x^2+12x+32)"),
        ("Weekly water intake $=15.5$ Litres", "15.5 Litres", "15.5"),
        ("216.\\mathrm{cm}^2", "216.\\mathrm{cm}^2", "216"),
        ("S.A. of rectangular prism $=4371.46 \\mathrm{~mm}^{2}$", "4371.46 \\mathrm{~mm}^{2}", "4371.46"),
        ("Total S.A. $=3222.80 \\mathrm{~mm}^{2}$", "3222.80 \\mathrm{~mm}^{2}", "3222.8"),
        ("Center $=(20,10)$", "(20,10)", "(20, 10)"),
        ("118掳T", "118°T", "118°"),
        ("S 23.5 ^\\circ W", "S 23.5 ^\\circ W", "S 23.5° W"),
        ("{8}{5} \\pi", "\\frac{8}{5} \\pi", "\\frac{8\\pi}{5}"),
        ("=\\frac{7}{4}", "\\frac{7}{4}", "7/4"),
        ("$5=s$", "5=s", "5"),
        ("y=-2 x+5", "y=-2 x+5", "y=5-2x"),
        ("-4.9\n-4.9", "-4.9, -4.9", "-4.9, -4.9"),
    ],
)
def test_mathverse_golds_lose_labels_and_units(stored: str, gold: str, plain: str, credited: Any) -> None:
    assert gold_of(stored) == gold
    assert credited(Item("mathverse", "1", "?", gold), plain)


def test_mathverse_versions_share_a_group_and_a_judge_question() -> None:
    rows = [item for item in items_of("mathverse").values() if item.group == "1"]
    versions = ["Text Dominant", "Text Lite", "Vision Intensive", "Vision Dominant", "Vision Only"]
    assert [item.meta["version"] for item in rows] == versions
    assert len({item.for_judge for item in rows}) == 1
    assert "Hint" not in row("mathvista", "272").for_judge
    text = items_of("mathverse_text_only")
    assert all(not item.images and item.benchmark == "mathverse_text_only" for item in text.values())
    with pytest.raises(UserError, match="version 'Text Only' belongs to mathverse_text_only"):
        BENCHMARKS["mathverse"].load(FIXTURES / "mathverse_text_only.jsonl")


def test_mathverse_without_question_for_eval_takes_the_text_of_the_other_versions(tmp_path: Any) -> None:
    from datasets import load_dataset

    stored = load_dataset("parquet", data_files=str(FIXTURES / "mathverse.parquet"), split="train")
    without = stored.remove_columns("question_for_eval")
    without.to_parquet(tmp_path / "testmini.parquet")
    loaded = BENCHMARKS["mathverse"].load(tmp_path / "testmini.parquet")
    assert [item.fingerprint for item in loaded.items] == [i.fingerprint for i in items_of("mathverse").values()]
    assert "schema differs from AI4Math/MathVerse: without question_for_eval" in loaded.notes
    without.filter(lambda row: row["problem_version"] == "Vision Only").to_parquet(tmp_path / "alone.parquet")
    with pytest.raises(UserError, match="column 'question_for_eval' is empty"):
        BENCHMARKS["mathverse"].load(tmp_path / "alone.parquet")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"precision": 3}, "answer type 'float' with precision 3 is unknown"),
        ({"answer_type": "number"}, "answer type 'number' with precision 1 is unknown"),
        ({"choices": ["1", "2"]}, "question type 'free_form' does not fit choices ('1', '2')"),
    ],
)
def test_mathvista_rows_with_contradicting_types_are_refused(tmp_path: Any, change: Any, words: str) -> None:
    metadata = dict.fromkeys(("language", "source", "category", "task", "context", "grade"), "x") | {"skills": []}
    stored = {
        "pid": "1", "question": "?", "image": "", "decoded_image": None, "choices": None, "unit": None,
        "precision": 1.0, "answer": "1.2", "question_type": "free_form", "answer_type": "float",
        "metadata": metadata | {"split": "testmini", "img_width": 1, "img_height": 1}, "query": "?",
    }  # fmt: skip
    (tmp_path / "rows.json").write_text(json.dumps([stored | change]))
    with pytest.raises(UserError) as caught:
        BENCHMARKS["mathvista"].load(tmp_path / "rows.json", images=False)
    assert words in str(caught.value)


def test_columns_of_training_files(tmp_path: Any) -> None:
    stored = {"prompt": "2+2?", "answer": "4", "source": "math", "id": "test/counting_and_probability/9.json"}
    (tmp_path / "test.json").write_text(json.dumps([stored]))
    loaded = BENCHMARKS["math500"].load(tmp_path / "test.json")
    assert loaded.items[0].meta == {"subject": "Counting & Probability"}
    assert loaded.notes[1:] == (
        "column 'prompt' is read as 'problem'",
        "column 'id' is read as 'unique_id'",
        "schema differs from HuggingFaceH4/MATH-500: without solution, subject, level; with the further source",
    )
    # Of several accepted forms the first is the gold.
    (tmp_path / "test.json").write_text(json.dumps([{"question": "How much?", "answer": ["0.01\n", "0.02\n"]}]))
    assert BENCHMARKS["minerva"].load(tmp_path / "test.json").items[0].gold == "0.01"


def test_gpqa_order_follows_from_the_question_alone() -> None:
    options = ["the neutrino", "the electron", "the muon", "the tau"]
    by_hash = sorted(options, key=lambda option: hashlib.sha256(f"Which?\x1f{option}".encode()).hexdigest())
    assert shown_order("Which?", options) == shown_order("Which?", options[::-1]) == tuple(by_hash)
    # The right answer is first in the file; shown, it is anywhere: 4 places, 400 questions, 100 +- 5 * 8.7.
    places = [shown_order(f"Question {number}?", options).index("the neutrino") for number in range(400)]
    assert all(56 <= places.count(place) <= 144 for place in range(4))
    first = row("gpqa_diamond", "rec1")
    assert first.choices is not None
    assert first.choices["ABCD".index(first.gold)] == "the neutrino"
    assert f"\n({first.gold}) the neutrino" in first.question


@pytest.mark.parametrize(
    ("unit", "power", "rest"),
    [
        ("$10^{14}\\mathrm{~Hz}$", 14, "\\mathrm{~Hz}"),
        (" $10^{-47} \\mathrm{~kg} \\mathrm{~m}^2$", -47, "\\mathrm{~kg} \\mathrm{~m}^2"),
        (" $\\mathrm{10^7} \\mathrm{~km}$", 7, "\\mathrm{~km}"),
        (" $\\mathrm{10^{-4}} \\mathrm{~cm}^3/\\mathrm{s}$", -4, "\\mathrm{~cm}^3/\\mathrm{s}"),
        (" 10^{-5} \\mathrm{~m}", -5, "\\mathrm{~m}"),
        (" $10^{16}$ photons", 16, "photons"),
        ("$10^{42}$", 42, ""),
        (" $\r\n10^{15} \\text { photon }\r\n$", 15, "\\text { photon }"),
        (" $", 0, "\\$"),
        (" $\\$$", 0, "\\$"),
        (" %", 0, "%"),
        (" ", 0, ""),
    ],
)
def test_scibench_powers_of_ten_leave_the_unit(unit: str, power: int, rest: str) -> None:
    assert split_power(unit) == (power, rest)


# -- sub-scores -----------------------------------------------------------------------------------------------------


def made(name: str, *meta: dict[str, Any]) -> list[Item]:
    return [Item(name, str(number), "?", "1", meta=fields) for number, fields in enumerate(meta)]


def counts(table: dict[str, dict[str, Any]]) -> dict[str, tuple[float, int]]:
    return {key: (cell["correct"], cell["n"]) for key, cell in table.items()}


def test_mathvision_official_keys() -> None:
    subjects = [("algebra", 3), ("algebra", 3), ("algebra", 1), ("logic", 3)]
    items = made("mathvision", *({"subject": subject, "level": level} for subject, level in subjects))
    scores = BENCHMARKS["mathvision"].sub_scores(items, {"0": True, "1": False, "2": True, "3": True})
    # All: 3 of 4. Level 3: rows 0, 1, 3, of which two are right. Algebra: 0, 1, 2, of which two are right.
    assert counts(scores["official"]) == {
        "-all": (3, 4), "-level1": (1, 1), "-level3": (2, 3), "algebra": (2, 3), "logic": (1, 1),
        "algebra_level1": (1, 1), "algebra_level3": (1, 2), "logic_level3": (1, 1),
    }  # fmt: skip
    assert scores["level"]["3"]["accuracy"] == 2 / 3


def test_mathverse_and_mathvista_fields() -> None:
    # Right are all Text Dominant rows and nothing else: one version of the 14 problems.
    verse, vista = items_of("mathverse"), items_of("mathvista")
    correct = {item.id: item.meta["version"] == "Text Dominant" for item in verse.values()}
    scores = BENCHMARKS["mathverse"].sub_scores(verse.values(), correct)
    assert list(scores) == ["version", "subject", "subfield", "question_type"]
    assert counts(scores["version"])["Text Dominant"] == (14, 14)
    assert counts(scores["version"])["Vision Only"] == (0, 14)
    assert counts(scores["subfield"])["Plane Geometry-Angle"] == (3, 15)
    scores = BENCHMARKS["mathvista"].sub_scores(vista.values(), dict.fromkeys(vista, True))
    fields = ["question_type", "answer_type", "language", "source", "category", "task", "context", "grade", "skills"]
    assert list(scores) == fields
    assert counts(scores["answer_type"]) == {"float": (3, 3), "integer": (1, 1), "list": (1, 1), "text": (6, 6)}
    # Row 0 is right and counts under both skills: 1 of 2 each.
    items = made("mathvista", {"skills": ["x", "y"]}, {"skills": ["x"]}, {"skills": ["y"]})
    scores = BENCHMARKS["mathvista"].sub_scores(items, {"0": 1, "1": 0, "2": 0})
    assert counts(scores["skills"]) == {"x": (1, 2), "y": (1, 2)}


def test_text_fields() -> None:
    scores = BENCHMARKS["math500"].sub_scores(items_of("math500").values(), {"test/precalculus/1.json": 1})
    assert (counts(scores["subject"]), counts(scores["level"])) == ({"Precalculus": (1, 1)}, {"2": (1, 1)})
    scores = BENCHMARKS["gpqa_diamond"].sub_scores(items_of("gpqa_diamond").values(), {"rec1": 1, "rec2": 0})
    assert counts(scores["domain"]) == {"Chemistry": (0, 1), "Physics": (1, 1)}
    first, second, again = items_of("mmlu").values()
    assert again.id == f"{first.id}#2"
    scores = BENCHMARKS["mmlu"].sub_scores([first, second, again], {first.id: 1, second.id: 0, again.id: 1})
    assert counts(scores["group"]) == {"STEM": (2, 2), "humanities": (0, 1)}
    # Sizes as in the paper's appendix: 18 STEM, 13 humanities, 12 social sciences, 14 other.
    assert [len(subjects) for subjects in GROUPS.values()] == [18, 13, 12, 14]
    assert len({subject for subjects in GROUPS.values() for subject in subjects}) == 57
