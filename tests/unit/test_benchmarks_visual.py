"""The visual benchmarks row by row: every odd row the files reproduce, prompts, golds, official sub-scores."""

from __future__ import annotations

import io
import json

import pytest
from PIL import Image

from eval_suite.grading.rules import Rules, Task
from eval_suite.items import Item
from eval_suite.tasks import BENCHMARKS
from eval_suite.tasks.mathverse import gold_of
from mmcorl.errors import UserError
from paths import FIXTURES


def items_of(name: str) -> dict[str, Item]:
    (source,) = FIXTURES.glob(f"{name}.*")
    return {item.id: item for item in BENCHMARKS[name].load(source).items}


@pytest.fixture(scope="module")
def vision() -> dict[str, Item]:
    return items_of("mathvision")


@pytest.fixture(scope="module")
def verse() -> dict[str, Item]:
    return items_of("mathverse")


@pytest.fixture(scope="module")
def vista() -> dict[str, Item]:
    return items_of("mathvista")


@pytest.fixture(scope="module")
def we() -> dict[str, Item]:
    return items_of("wemath")


@pytest.fixture(scope="module")
def credited():
    with Rules() as rules:
        yield lambda item, answer: rules.apply(f"<answer>{answer}</answer>", Task.of(item)).rule


@pytest.mark.parametrize("name", ["mathvision", "mathverse", "mathvista", "wemath"])
def test_every_row_has_one_picture_and_its_own_gold_is_right(name, credited):
    for item in items_of(name).values():
        (image,) = item.images
        assert Image.open(io.BytesIO(image)).size == (96, 64)
        assert credited(item, item.gold), item.id
        if item.choices:
            letters = item.gold.split(", ")
            assert all(item.choices[ord(letter) - ord("A")] for letter in letters)


# MathVision


@pytest.mark.parametrize(("row", "gold"), [("654", "E"), ("742", "D"), ("761", "D"), ("941", "D"), ("1893", "A")])
def test_mathvision_letters_are_labels_where_an_option_reads_as_another_label(vision, credited, row, gold):
    item = vision[row]
    assert item.gold == gold
    assert credited(item, gold)
    wrong = next(letter for letter in "ABCDE" if letter != gold)
    assert not credited(item, wrong)


def test_mathvision_option_texts_that_read_as_labels(vision, credited):
    # 742: the third option reads C, the fourth E; an answer C is option C, an answer E option E.
    assert vision["742"].choices == ("A", "B", "C", "E", "Impossible to say")
    assert not credited(vision["742"], "E")
    assert credited(vision["761"], "H")  # the value of option D, no letter in range


def test_mathvision_repeated_options_keep_their_letters(vision):
    assert vision["1843"].choices == ("1 and 3", "1 and 5", "2 and 4", "2 and 4", "3 and 5")
    assert vision["1843"].gold == "E"


def test_mathvision_names_of_parts_of_the_picture_stay_and_places_go(vision):
    assert vision["2653"].choices == tuple(f"<image{number}>" for number in range(2, 7))
    assert vision["2653"].question == (
        "What comes next after <image1>?\nChoices:\n"
        "(A) <image2>\n(B) <image3>\n(C) <image4>\n(D) <image5>\n(E) <image6>"
    )
    assert "<image2>" in vision["59"].question
    assert vision["2521"].question == "How many squares are there?"


def test_mathvision_a_question_that_is_only_a_picture(vision):
    assert vision["528"].question == "Answer the question shown in the image."


def test_mathvision_letter_golds_without_options_are_free_form(vision):
    assert vision["59"].choices is None
    assert vision["59"].gold == "C"


def test_mathvision_golds(vision):
    assert {row: vision[row].gold for row in ("2521", "2828", "2830", "2937", "2947", "2955", "3007")} == {
        "2521": "11",
        "2828": "\\frac{16}{7}",
        "2830": "\\frac{36}{13}",  # stored with a form feed for \f
        "2937": "1:2",
        "2947": "69 degrees",
        "2955": "(3,-4)",
        "3007": "8\\sqrt{3} squareinches",
    }


def test_mathvision_cleaned_golds_credit_the_plain_answer(vision, credited):
    plain = {"2830": "36/13", "2947": "69", "3007": "8\\sqrt{3}", "2828": "16/7", "2937": "1:2", "2521": "11"}
    assert {row: credited(vision[row], answer) for row, answer in plain.items()} == dict.fromkeys(plain, True)


def test_mathvision_official_keys():
    items = [
        Item("mathvision", str(number), "?", "1", meta={"subject": subject, "level": level})
        for number, (subject, level) in enumerate([("algebra", 3), ("algebra", 3), ("algebra", 1), ("logic", 3)])
    ]
    scores = BENCHMARKS["mathvision"].sub_scores(items, {"0": True, "1": False, "2": True, "3": True})
    # All: 3 of 4. Level 3: rows 0, 1, 3, of which two are right. Algebra: 0, 1, 2, of which two are right.
    counts = {key: (cell["correct"], cell["n"]) for key, cell in scores["official"].items()}
    assert counts == {
        "-all": (3, 4), "-level1": (1, 1), "-level3": (2, 3), "algebra": (2, 3), "logic": (1, 1),
        "algebra_level1": (1, 1), "algebra_level3": (1, 2), "logic_level3": (1, 1),
    }  # fmt: skip
    assert scores["level"]["3"]["accuracy"] == 2 / 3
    assert scores["subject"]["algebra"]["n"] == 3


# MathVerse


def of_problem(verse: dict[str, Item], problem: str) -> list[Item]:
    return [item for item in verse.values() if item.group == problem]


def test_mathverse_five_versions_share_a_group_and_a_judge_question(verse):
    rows = of_problem(verse, "1")
    assert [row.meta["version"] for row in rows] == [
        "Text Dominant", "Text Lite", "Vision Intensive", "Vision Dominant", "Vision Only",
    ]  # fmt: skip
    assert len({row.for_judge for row in rows}) == 1
    assert [row.id for row in rows] == ["1", "2", "3", "4", "5"]


def test_mathverse_vision_only_has_no_question_but_options_and_a_judge_question(verse, credited):
    only = of_problem(verse, "1")[-1]
    assert only.question == "Answer the question shown in the image."
    assert only.choices == ("40°", "60°", "120°", "140°")
    assert "CED" in only.for_judge
    assert credited(only, "140°")
    assert not credited(only, "120°")


def test_mathverse_without_question_for_eval_takes_the_text_of_the_other_versions(tmp_path):
    from datasets import load_dataset

    stored = load_dataset("parquet", data_files=str(FIXTURES / "mathverse.parquet"), split="train")
    stored.remove_columns("question_for_eval").to_parquet(tmp_path / "testmini.parquet")
    loaded = BENCHMARKS["mathverse"].load(tmp_path / "testmini.parquet")
    official = BENCHMARKS["mathverse"].load(FIXTURES / "mathverse.parquet")
    assert [item.fingerprint for item in loaded.items] == [item.fingerprint for item in official.items]
    assert "schema differs from AI4Math/MathVerse: without question_for_eval" in loaded.notes

    alone = stored.remove_columns("question_for_eval").filter(lambda row: row["problem_version"] == "Vision Only")
    alone.to_parquet(tmp_path / "alone.parquet")
    with pytest.raises(UserError, match="column 'question_for_eval' is empty"):
        BENCHMARKS["mathverse"].load(tmp_path / "alone.parquet")


@pytest.mark.parametrize(
    ("problem", "gold", "choices"),
    [
        ("521", "B", 3),  # stored as (B)
        ("525", "F", 6),
        ("440", "C, D", 4),  # stored as two lines
        ("429", "B", 2),  # stored as False
        ("339", "A", 3),  # stored as 090^\circ T
        ("622", "C", 4),  # option B is empty
        ("719", "C", 3),  # options are ratios, A:1:2
    ],
)
def test_mathverse_option_golds_become_labels(verse, problem, gold, choices):
    for row in of_problem(verse, problem):
        assert row.gold == gold
        assert len(row.choices or ()) == choices


def test_mathverse_two_labels_are_a_set(verse, credited):
    row = of_problem(verse, "440")[0]
    assert credited(row, "C, D")
    assert credited(row, "D and C")
    assert not credited(row, "C")


def test_mathverse_ratios_are_options_not_separators(verse, credited):
    row = of_problem(verse, "719")[0]
    assert row.choices == ("1:2", "1:8", "1:64")
    assert credited(row, "1:64")


@pytest.mark.parametrize(
    ("stored", "gold", "plain"),
    [
        ("Circumference $=50.27 \\mathrm{~cm}$", "50.27 \\mathrm{~cm}", "50.27"),
        ("$$r=7.00$$", "r=7.00", "7"),
        ("slope =-4", "-4", "-4"),
        ("Area $=9 \\pi \\mathrm{cm}^{2}$", "9 \\pi \\mathrm{cm}^{2}", "9\\pi"),
        ("Area $=\\frac{121 \\pi}{4} \\mathrm{~m}^{2}$", "\\frac{121 \\pi}{4} metre^{2}", "\\frac{121\\pi}{4}"),
        ("12x^2+144x+384 \\mathrm{m}^3", "12x^2+144x+384 metre^3", "12(x^2+12x+32)"),
        ("Weekly water intake $=15.5$ Litres", "15.5 Litres", "15.5"),
        ("$1690cm^2$", "1690cm^2", "1690"),
        ("216.\\mathrm{cm}^2", "216.\\mathrm{cm}^2", "216"),
        ("S.A. of rectangular prism $=4371.46 \\mathrm{~mm}^{2}$", "4371.46 \\mathrm{~mm}^{2}", "4371.46"),
        ("Total S.A. $=3222.80 \\mathrm{~mm}^{2}$", "3222.80 \\mathrm{~mm}^{2}", "3222.8"),
        ("S.A. $=1209.84$", "1209.84", "1209.84"),
        ("Center $=(20,10)$", "(20,10)", "(20, 10)"),
        ("118掳T", "118°T", "118°"),
        ("35掳", "35°", "35"),
        ("S 23.5 ^\\circ W", "S 23.5 ^\\circ W", "S 23.5° W"),
        ("{8}{5} \\pi", "\\frac{8}{5} \\pi", "\\frac{8\\pi}{5}"),
        ("=\\frac{7}{4}", "\\frac{7}{4}", "7/4"),
        ("$5=s$", "5=s", "5"),
        ("y=-2 x+5", "y=-2 x+5", "y=5-2x"),
        ("f(x)=|x-3|", "f(x)=|x-3|", "f(x)=|x-3|"),
        ("-4.9\n-4.9", "-4.9, -4.9", "-4.9, -4.9"),
    ],
)
def test_mathverse_golds_lose_their_dress_and_credit_the_plain_value(stored, gold, plain, credited):
    assert gold_of(stored) == gold
    assert credited(Item("mathverse", "1", "?", gold), plain)


def test_mathverse_text_only_is_a_benchmark_of_its_own():
    text = items_of("mathverse_text_only")
    assert all(not item.images and item.benchmark == "mathverse_text_only" for item in text.values())
    with pytest.raises(UserError, match="version 'Text Only' belongs to mathverse_text_only"):
        BENCHMARKS["mathverse"].load(FIXTURES / "mathverse_text_only.jsonl")


def test_mathverse_sub_scores(verse):
    # Right are all Text Dominant rows and nothing else: one version of the 14 problems.
    correct = {item.id: item.meta["version"] == "Text Dominant" for item in verse.values()}
    scores = BENCHMARKS["mathverse"].sub_scores(verse.values(), correct)
    assert set(scores) == {"version", "subject", "subfield", "question_type"}
    assert scores["version"]["Text Dominant"] == {"n": 14, "correct": 14, "accuracy": 1.0}
    assert scores["version"]["Vision Only"] == {"n": 14, "correct": 0, "accuracy": 0.0}
    assert {key: cell["n"] for key, cell in scores["subject"].items()} == {
        "Plane Geometry": 35, "Functions": 25, "Solid Geometry": 10,
    }  # fmt: skip
    assert scores["subfield"]["Plane Geometry-Angle"] == {"n": 15, "correct": 3, "accuracy": 0.2}
    assert scores["question_type"]["multi-choice"]["n"] == 40


# MathVista


def test_mathvista_prompts_are_the_official_query(vista):
    assert vista["2"].question == (
        "Hint: Please answer the question requiring an integer answer and provide the final value, e.g., 1, 2, 3, "
        "at the end.\nQuestion: How old is the older of the two? (Unit: years)"
    )
    assert vista["900"].question.startswith(
        "Hint: Please answer the question requiring a floating-point number with two decimal places"
    )
    assert vista["506"].question.startswith("Hint: Please answer the question requiring a Python list as an answer")


def test_mathvista_prompts_show_the_choices_whatever_the_query_says(vista):
    assert vista["272"].question.endswith(
        "Question: What time does the clock show?\nChoices:\n(A) 9:30\n(B) 1:30\n(C) 4:30\n(D) 5:30\n(E) 11:30"
    )
    assert "Hint" not in vista["272"].for_judge


def test_mathvista_repeated_options_are_both_right_when_they_are_the_gold(vista, credited):
    assert [credited(vista["781"], letter) for letter in "ABCD"] == [False, False, True, True]
    assert [credited(vista["740"], letter) for letter in "ABCD"] == [True, False, False, False]
    assert [credited(vista["587"], letter) for letter in "ABCD"] == [False, True, False, False]
    assert credited(vista["781"], "18")


def test_mathvista_yes_and_no_and_letters_as_options(vista, credited):
    assert vista["9"].gold == "B"
    assert credited(vista["9"], "No")
    assert not credited(vista["9"], "Yes")
    assert vista["10"].gold == "E"


def test_mathvista_typed_answers(vista, credited):
    assert (vista["1"].answer_type, vista["1"].precision) == ("float", 1)
    assert credited(vista["1"], "1.22")  # rounds to 1.2
    assert not credited(vista["1"], "1.26")  # rounds to 1.3
    assert (vista["900"].answer_type, vista["900"].precision) == ("float", 2)
    assert credited(vista["900"], "51.041")
    assert not credited(vista["900"], "51.05")
    assert (vista["2"].answer_type, vista["2"].unit) == ("integer", "years")
    assert credited(vista["2"], "14 years")
    assert (vista["506"].answer_type, vista["506"].gold) == ("list", "[2014, 2016]")
    assert credited(vista["506"], "[2014, 2016]")


def test_mathvista_a_row_counts_once_per_skill():
    def item(pid: str, task: str, skills: list[str]) -> Item:
        return Item("mathvista", pid, "?", "1", meta={"task": task, "grade": "college", "skills": skills})

    arithmetic, geometry = "arithmetic reasoning", "geometry reasoning"
    items = [item("1", "A", [arithmetic, geometry]), item("2", "A", [arithmetic]), item("3", "B", [geometry])]
    scores = BENCHMARKS["mathvista"].sub_scores(items, {"1": 1, "2": 0, "3": 0})
    # Row 1 is right and counts under both skills: 1 of 2 each.
    assert {key: (cell["correct"], cell["n"]) for key, cell in scores["skills"].items()} == {
        arithmetic: (1, 2), geometry: (1, 2),
    }  # fmt: skip
    assert scores["task"]["A"]["accuracy"] == 0.5
    assert scores["grade"]["college"]["n"] == 3


def test_mathvista_sub_scores_cover_the_official_fields(vista):
    scores = BENCHMARKS["mathvista"].sub_scores(vista.values(), dict.fromkeys(vista, True))
    assert list(scores) == [
        "question_type", "answer_type", "language", "source", "category", "task", "context", "grade", "skills",
    ]  # fmt: skip
    assert {key: cell["n"] for key, cell in scores["answer_type"].items()} == {
        "float": 3, "integer": 1, "list": 1, "text": 6,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"precision": 3}, "answer type 'float' with precision 3 is unknown"),
        ({"answer_type": "number"}, "answer type 'number' with precision 1 is unknown"),
        ({"choices": ["1", "2"]}, "question type 'free_form' does not fit choices ('1', '2')"),
    ],
)
def test_mathvista_rows_with_contradicting_types_are_refused(tmp_path, change, words):
    metadata = dict.fromkeys(("language", "source", "category", "task", "context", "grade"), "x") | {"skills": []}
    row = {
        "pid": "1", "question": "?", "image": "", "decoded_image": None, "choices": None, "unit": None,
        "precision": 1.0, "answer": "1.2", "question_type": "free_form", "answer_type": "float",
        "metadata": metadata | {"split": "testmini", "img_width": 1, "img_height": 1}, "query": "?",
    }  # fmt: skip
    (tmp_path / "rows.json").write_text(json.dumps([row | change]))
    with pytest.raises(UserError) as caught:
        BENCHMARKS["mathvista"].load(tmp_path / "rows.json", images=False)
    assert words in str(caught.value)


# We-Math: options; its scores are in test_benchmarks_wemath.py


@pytest.mark.parametrize(
    ("number", "choices"),
    [
        ("94", ("Yes, by 90 degrees around point O.", "Yes, by 45 degrees around point O.", "No.", "", "",
                "No correct answer")),
        ("817", ("①; ③", "②; ③", "②; ④", "①; ④", "No correct answer")),
        ("102", ("It moves to get Shape C.", "It turns to get Shape C.", "No correct answer")),
        ("9", ("F", "D", "B", "I", "No correct answer")),
        ("43", ("40°, 90°", "40°, 60°", "40°, 50°", "40°, 50°", "No correct answer")),
        ("1118", ("45°", "60°", "120°", "No correct answer")),
        ("1287", ("4", "3", "2", "1", "No correct answer")),
        ("1371", ("Equal", "EDG is twice triangle BEG.", "EDG is twice triangle BEG.", "Cannot be determined")),
    ],
)  # fmt: skip
def test_wemath_options_are_found_whatever_the_semicolons_do(we, number, choices):
    assert we[number].choices == choices


def test_wemath_letters_beat_values_that_are_letters(we, credited):
    # A. F; B. D; C. B; D. I: the gold is B, whose value is D; the answer D is option D.
    assert credited(we["9"], "B")
    assert not credited(we["9"], "D")
    assert not credited(we["9"], "C")


def test_wemath_a_letter_left_out_is_not_shown(we):
    assert we["94"].question.endswith("(C) No.\n(F) No correct answer")
