"""The text suites: golds as they are stored, options as they are shown, sub-scores."""

from __future__ import annotations

import hashlib
import json

import pytest

from eval_suite.grading.rules import Rules, Task
from eval_suite.items import Item
from eval_suite.tasks import BENCHMARKS
from eval_suite.tasks.gpqa import shown_order
from eval_suite.tasks.mmlu import GROUPS
from eval_suite.tasks.scibench import split_power
from paths import FIXTURES

TEXTS = ("gsm8k", "math500", "amc", "minerva", "gpqa_diamond", "mmlu", "scibench")


def items_of(name: str) -> tuple[Item, ...]:
    return BENCHMARKS[name].load(FIXTURES / f"{name}.jsonl").items


@pytest.fixture(scope="module")
def credited():
    with Rules() as rules:
        yield lambda item, answer: rules.apply(f"So it is \\boxed{{{answer}}}.", Task.of(item)).rule


@pytest.mark.parametrize("name", TEXTS)
def test_every_row_is_text_and_its_own_gold_is_right(name, credited):
    for item in items_of(name):
        assert item.images == ()
        assert credited(item, item.gold), item


def test_gsm8k_golds_are_what_stands_behind_the_hashes(credited):
    assert [item.gold for item in items_of("gsm8k")] == ["18", "1450", "-3"]
    assert credited(items_of("gsm8k")[1], "1,450")


def test_math500_knows_subject_and_level():
    first = items_of("math500")[0]
    assert (first.id, first.gold) == ("test/precalculus/1.json", "\\left( 3, \\frac{\\pi}{2} \\right)")
    scores = BENCHMARKS["math500"].sub_scores(items_of("math500"), {"test/precalculus/1.json": 1})
    assert scores == {
        "subject": {"Precalculus": {"n": 1, "correct": 1, "accuracy": 1.0}},
        "level": {"2": {"n": 1, "correct": 1, "accuracy": 1.0}},
    }


def test_math500_in_the_columns_of_training_files(tmp_path):
    row = {"prompt": "2+2?", "answer": "4", "source": "math", "id": "test/counting_and_probability/9.json"}
    (tmp_path / "test.json").write_text(json.dumps([row]))
    loaded = BENCHMARKS["math500"].load(tmp_path / "test.json")
    assert loaded.items[0].meta == {"subject": "Counting & Probability"}
    assert loaded.notes[1:] == (
        "column 'prompt' is read as 'problem'",
        "column 'id' is read as 'unique_id'",
        "schema differs from HuggingFaceH4/MATH-500: without solution, subject, level; with the further source",
    )


def test_amc_answers_are_integers_and_eight_samples_are_due():
    assert [item.gold for item in items_of("amc")] == ["142", "-3"]
    assert [item.id for item in items_of("amc")] == ["0", "1"]
    assert (BENCHMARKS["amc"].aggregation, BENCHMARKS["amc"].samples) == ("avg@8", 8)


def test_minerva_takes_the_first_accepted_form(tmp_path):
    (tmp_path / "test.json").write_text(json.dumps([{"question": "How much?", "answer": ["0.01\n", "0.02\n"]}]))
    assert BENCHMARKS["minerva"].load(tmp_path / "test.json").items[0].gold == "0.01"


def test_gpqa_order_follows_from_the_question_alone(credited):
    options = ["the neutrino", "the electron", "the muon", "the tau"]

    def place(option: str) -> str:
        return hashlib.sha256(f"Which?\x1f{option}".encode()).hexdigest()

    assert shown_order("Which?", options) == tuple(sorted(options, key=place))
    assert shown_order("Which?", options[::-1]) == shown_order("Which?", options)
    # The right answer is first in the file; shown, it is anywhere: 4 places, 400 questions, 100 +- 5 * 8.7.
    places = [shown_order(f"Question {number}?", options).index("the neutrino") for number in range(400)]
    assert all(56 <= places.count(place) <= 144 for place in range(4))

    first = items_of("gpqa_diamond")[0]
    assert first.choices is not None
    assert first.choices["ABCD".index(first.gold)] == "the neutrino"
    assert f"\n({first.gold}) the neutrino" in first.question
    assert credited(first, first.gold)
    assert credited(first, "the neutrino")
    assert not credited(first, "the muon")
    assert first.id == "rec1"


def test_gpqa_numbers_as_options_are_read_as_values(credited):
    naphthalene = items_of("gpqa_diamond")[1]
    assert credited(naphthalene, "2")
    assert not credited(naphthalene, "4")


def test_gpqa_by_domain():
    items = items_of("gpqa_diamond")
    scores = BENCHMARKS["gpqa_diamond"].sub_scores(items, {"rec1": 1, "rec2": 0})
    assert {name: cell["correct"] for name, cell in scores["domain"].items()} == {"Chemistry": 0, "Physics": 1}


def test_mmlu_letters_groups_and_repeated_rows():
    first, second, again = items_of("mmlu")
    assert (first.gold, second.gold) == ("C", "A")
    assert first.question.endswith("Choices:\n(A) 4\n(B) 6\n(C) 7\n(D) 9")
    assert again.id == f"{first.id}#2"
    scores = BENCHMARKS["mmlu"].sub_scores([first, second, again], {first.id: 1, second.id: 0, again.id: 1})
    assert {name: (cell["correct"], cell["n"]) for name, cell in scores["group"].items()} == {
        "STEM": (2, 2), "humanities": (0, 1),
    }  # fmt: skip


def test_mmlu_has_57_subjects_in_four_groups():
    # Sizes as in the paper's appendix: 18 STEM, 13 humanities, 12 social sciences, 14 other.
    assert [len(subjects) for subjects in GROUPS.values()] == [18, 13, 12, 14]
    assert len({subject for subjects in GROUPS.values() for subject in subjects}) == 57


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
        ("$10^3$", 3, ""),
        (
            " $\r\n10^{15} \\text { photon } \\cdot \\mathrm{s}^{-1}\r\n$",
            15,
            "\\text { photon } \\cdot \\mathrm{s}^{-1}",
        ),
        (" $", 0, "\\$"),
        (" $\\$$", 0, "\\$"),
        (" %", 0, "%"),
        ("km ", 0, "km"),
        (" ", 0, ""),
    ],
)
def test_scibench_powers_of_ten_leave_the_unit(unit, power, rest):
    assert split_power(unit) == (power, rest)


def test_scibench_golds_units_and_tolerance(credited):
    items = items_of("scibench")
    assert [item.gold for item in items] == [
        "5.51 \\times 10^{14}", "7 \\times 10^{7}", "89034.79", "-1.642876", "2.5", "2.5",
    ]  # fmt: skip
    frequency = items[0]
    assert frequency.question == "What is the threshold frequency? The unit of the answer is $\\mathrm{~Hz}$."
    assert items[2].question.endswith("The unit of the answer is \\$.")
    assert items[3].question == "What is the slope?"
    # Five per cent of 5.51e14 is 0.2755e14.
    assert credited(frequency, "5.7 \\times 10^{14}")
    assert credited(frequency, "5.25e14")
    assert not credited(frequency, "5.8 \\times 10^{14}")
    assert not credited(frequency, "5.51")
    assert items[4].id != items[5].id
