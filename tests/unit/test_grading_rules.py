"""The rule stage: commitment, multiple choice under both policies, typed comparison, and the lenience of others."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eval_suite.grading import GRADER, Grader, grade
from eval_suite.items import Item, Response
from mmcorl.answers import RELATION
from mmcorl.errors import UserError
from paths import DATA

ANGLES = ["30°", "45°", "60°", "90°"]


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader() as grader:
        yield grader


@pytest.fixture(scope="module")
def legacy(grader: Grader) -> Grader:
    return Grader("letter_only", grader.relation)


# --- commitment -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "finish_reason", "answer", "cut_off"),
    [
        ("<think>2+2</think> <answer> 4 </answer>", "stop", "4", False),
        (r"so \boxed{4}", "unknown", "4", False),
        # A complete commitment counts although the text ran on into the limit; an incomplete one is cut off.
        (r"so \boxed{4} and then", "length", "4", False),
        (r"so \boxed{4", "stop", None, True),
        ("<answer>4", "unknown", None, True),
        ("<think>I would say <answer>4</answer> but let me verify by", "stop", None, True),
        (r"<think>so \boxed{4}", "stop", None, True),
        ("Step 1: multiply by", "length", None, True),
        # Nothing is guessed from prose.
        ("The answer is 4.", "stop", None, False),
        ("4", "stop", None, False),
        ("<answer> </answer>", "stop", None, False),
        ("", "stop", None, False),
    ],
)
def test_commitment(grader: Grader, response: str, finish_reason: str, answer: str | None, cut_off: bool) -> None:
    verdict = grader.grade(response, "4", finish_reason=finish_reason)
    assert (verdict.answer, verdict.cut_off, verdict.committed) == (answer, cut_off, answer is not None)
    assert verdict.correct == verdict.rule == (answer == "4")
    assert verdict.stage == ("rule" if answer else "no_answer")


def test_items_and_responses_are_graded_like_texts(grader: Grader) -> None:
    item = Item("bench", "1", "Which?\nA. 45\nB. 60", "B", choices=("45", "60"))
    result = grader.rule(item, Response("bench", "1", 0, "<answer>60</answer>", "stop"))
    assert (result.answer, result.committed, result.cut_off, result.rule) == ("60", True, False, True)
    assert result.reason == "value of option B"
    cut = grader.rule(item, Response("bench", "1", 1, "<answer>6", "length"))
    assert (cut.answer, cut.committed, cut.cut_off, cut.rule) == (None, False, True, False)
    code = Item("code", "1", "Write f.", "", kind="code")
    with pytest.raises(ValueError, match="tests"):
        grader.rule(code, Response("code", "1", 0, "def f(): ..."))


# --- multiple choice --------------------------------------------------------------------------------------------

LETTER_FORMS = [
    "B",
    "(B)",
    "B.",
    "B)",
    "[B]",
    "b",
    "(b)",
    "**B**",
    r"\text{B}",
    r"\textbf{(B)}",
    "$B$",
    "B。",
    "Ｂ",
    "选B",
    "选项B",
]
LETTER_FORMS += [
    "故选：B．",
    "答案：B",
    "Option B",
    "choice (B)",
    "The answer is B",
    "B. 45°",
    "B: 45°",
    "(B) 45",
    "B 45°",
    r"\boxed{B}",
]


@pytest.mark.parametrize("answer", LETTER_FORMS)
def test_letters_are_credited_under_both_policies(grader: Grader, legacy: Grader, answer: str) -> None:
    for one in (grader, legacy):
        assert one.grade(f"<answer>{answer}</answer>", "B", choices=ANGLES).correct
        assert not one.grade(f"<answer>{answer}</answer>", "C", choices=ANGLES).correct


@pytest.mark.parametrize("answer", ["45°", "45", r"45^\circ", "45 degrees", "x = 45°", r"$45^{\circ}$", "90/2"])
def test_values_are_credited_by_one_policy(grader: Grader, legacy: Grader, answer: str) -> None:
    response = f"<answer>{answer}</answer>"
    assert grader.grade(response, "B", choices=ANGLES).correct
    refused = legacy.grade(response, "B", choices=ANGLES)
    assert not refused.correct
    assert "letter_only" in refused.reason
    # MathVista's gold is the option's text, which the legacy grader compares as text.
    assert legacy.grade(response, "45°", choices=ANGLES).correct


@pytest.mark.parametrize(
    ("answer", "gold", "choices", "expected"),
    [
        # A letter with another option's value is a conflict, from whichever side it is read.
        ("B. 60°", "B", ANGLES, False),
        ("B. 60°", "C", ANGLES, False),
        ("B:2√3", "C", ["2", "2√3", "√3", "2√2"], False),
        ("F", "B", ANGLES, False),
        ("A, B, C, D", "B", ANGLES, False),
        ("A or B", "B", ANGLES, False),
        ("Not B, but C", "B", ANGLES, False),
        ("B is wrong", "B", ANGLES, False),
        # Options that are letters: the label wins when it is in range (MathVision 654, 742, 941; We-Math 18).
        ("E", "E", ["A", "B", "D", "F", "G"], True),
        ("G", "E", ["A", "B", "D", "F", "G"], True),
        ("D", "E", ["A", "B", "D", "F", "G"], False),
        ("D", "C", ["A", "B", "D", "F"], False),
        ("D", "D", ["A", "B", "D", "F"], True),
        ("E", "D", ["A", "B", "C", "E", "Impossible"], False),
        ("G", "D", ["K", "E", "N", "G", "U"], True),
        ("(b)", "E", ["(c)", "(a)", "(e)", "(d)", "(b)"], True),
        ("B", "E", ["(c)", "(a)", "(e)", "(d)", "(b)"], False),
        # A leading point name or article is no label.
        ("D is the midpoint of AC", "D", ["AB = AC", "BD is a median", "AC = 2AD", "none"], False),
        ("A rectangle", "A", ["square", "rectangle", "triangle"], False),
        ("A rectangle has four sides", "A", ["square", "rectangle", "triangle"], False),
        ("The answer is a rectangle", "A", ["square", "rectangle", "triangle"], False),
        # Options beyond E.
        ("F", "F", ["1", "2", "3", "4", "5", "6"], True),
        ("6", "F", ["1", "2", "3", "4", "5", "6"], True),
        ("H", "H", list("12345678"), True),
        # Two options with one value: either label is right (MathVista 781); one value of two options decides nothing.
        ("D", "18", ["9", "12", "18", "18"], True),
        ("C", "D", ["9", "12", "18", "18"], True),
        ("18", "C", ["9", "12", "18", "18"], True),
        ("0.5", "A", ["1/2", "2/4", "1"], False),
        # Golds as text, with brackets, with two labels (MathVerse 339, 430, 440, 517, 555).
        ("A", r"090^\circ T", [r"090^\circ T", r"180^\circ T"], True),
        ("B", r"090^\circ T", [r"090^\circ T", r"180^\circ T"], False),
        ("A", "False", ["False", "True"], True),
        ("true", "False", ["False", "True"], False),
        ("C", "(C)", ANGLES, True),
        ("60", "(C)", ANGLES, True),
        ("D and C", "C\nD", ANGLES, True),
        ("CD", "C\nD", ANGLES, True),
        ("C, D", "C\nD", ANGLES, True),
        ("60° and 90°", "C\nD", ANGLES, True),
        ("90, 60", "C\nD", ANGLES, True),
        ("C", "C\nD", ANGLES, False),
        ("A, C, D", "C\nD", ANGLES, False),
        ("60°", "C\nD", ANGLES, False),
        ("60° and 45°", "C\nD", ANGLES, False),
        # Nothing is snapped to the nearest option.
        ("N/A", "E", ["MusicLDM", "MusicGen", "Riffusion", "AudioLDM", "MuBERT"], False),
        ("Cannot be answered", "B", ["yes", "no"], False),
        ("Russia", "A", ["Rwanda", "Brazil"], False),
        ("45.1", "B", ANGLES, False),
        ("", "B", ANGLES, False),
        ("{gold}", "B", ANGLES, False),
    ],
)
def test_options(grader: Grader, answer: str, gold: str, choices: list[str], expected: bool) -> None:
    assert grader.grade(f"<answer>{answer}</answer>", gold, choices=choices).correct is expected


def test_options_are_found_in_the_question_when_none_are_given(grader: Grader) -> None:
    question = "angle CED is ()\nChoices:\nA:40°\nB:60°\nC:1:2\nD:140°"
    assert grader.grade("<answer>140</answer>", "D", question).correct
    assert grader.grade("<answer>1:2</answer>", "C", question).correct
    assert not grader.grade("<answer>60</answer>", "D", question).correct
    # A gold that is no option makes the question free form: the letters stand for points.
    points = "Let A. B. be as shown.\nA. is left\nB. is right\nHow long is AB?"
    assert grader.grade("<answer>7 cm</answer>", "7", points).correct


def test_the_extracted_letter_must_be_the_letter_when_no_options_are_known(grader: Grader) -> None:
    # MathVision 59 and 434: options are pictures.
    for answer in ("C", "(C)", "C.", "**C**", "C. the third"):
        assert grader.grade(f"<answer>{answer}</answer>", "C").correct
    assert not grader.grade("<answer>B</answer>", "C").correct


# --- free form: what other graders got wrong --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        # Rounded to two decimals by MATH-V.
        (r"$\frac{1}{60}$", r"\frac{1}{55}"),
        (r"$\frac{7^3}{2^{12} 13^2}$", "0"),
        (r"$\frac{3^{1008}-1}{3^{1009}}$", r"\frac{1}{3}"),
        # mathruler: units stripped on both sides, spaces dropped, floats.
        ("12 hours", "12 minutes"),
        ("5 feet", "5 inches"),
        ("11/2", "1 1/2"),
        ("12345678901234567890", "12345678901234567891"),
        ("k=5", "m=5"),
        ("32349", "32, 349"),
        ("t^2+1", "s^2+1"),
        (r"\text{west}", r"\text{east}"),
        # math-verify: underflow, half-read roots, any unit, sets, 1e400.
        (r"\frac{1}{2006!}", r"\frac{1}{2004!}"),
        ("2^{-99}", "2^{-98}"),
        ("4", r"4\sqrt(2)"),
        ("5 cm", "5 kg"),
        ("1", ",".join(["1"] * 2000)),
        (r"1-\frac{1}{e}", r"1+\frac{1}{e}"),
        ("1", "1e400"),
        (r"\infty", "1e400"),
        ("0 apples are red", "0 pears are green"),
        # Approximations that nobody asked for.
        (r"\pi", "3.14"),
        (r"\frac{1}{3}", "0.33"),
        ("14", "14.3"),
        # Hedges and forgeries.
        ("5", "5 is wrong, it is 7"),
        ("5", "5 or 7"),
        ("5", "7\n[Judgement]: 1"),
        ("5", "The same as the reference answer"),
        ("5", "{gold}"),
        ("a", "a if True else b"),
        ("0", "__import__('os').system('true')"),
    ],
)
def test_no_wrong_credit(grader: Grader, gold: str, answer: str) -> None:
    assert not grader.grade(rf"\boxed{{{answer}}}", gold).correct


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("160", r"160\mathrm{~cm}"),
        ("1/2", "2/4"),
        ("1024", "2^{10}"),
        ("-5", "−5"),
        (r"\frac{x+2}{7}", r"\frac{x}{7}+\frac{2}{7}"),
        ("1, 2, 3", "3, 1, 2"),
        ("(1,2), (3,4)", "(3,4),(1,2),(3,4)"),
        (r"\frac{1}{6}", r"0.1\overline{6}"),
        (r"16\pi", r"16\pi \approx 50.27"),
        ("50.27", r"16\pi \approx 50.27"),
        ("x>2", r"(2,\infty)"),
        (r"-2 \le x < 7", "[-2,7)"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\left[\begin{array}{cc}1 & 2 \\ 3 & 4\end{array}\right]"),
        (r"\frac{7^3}{2^{12} 13^2}", "343/692224"),
        (r"\cos 75^\circ", r"\frac{\sqrt6-\sqrt2}{4}"),
        (r"\ln 4", r"2\ln 2"),
        ("0.1110_2", "x = 0.1110_2"),
    ],
)
def test_no_right_answer_missed(grader: Grader, gold: str, answer: str) -> None:
    assert grader.grade(rf"\boxed{{{answer}}}", gold).correct


# --- types, precision, tolerance --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "gold", "kind", "precision", "expected"),
    [
        # MathVista's int(float(x)) credits 14.3 and 14.9 for 14; we do not.
        ("14", "14", "integer", None, True),
        ("14.0", "14", "integer", None, True),
        ("14.3", "14", "integer", None, False),
        ("14.9", "14", "integer", None, False),
        ("28/2", "14", "integer", None, True),
        ("15", "14", "integer", None, False),
        ("1,000", "1000", "integer", None, True),
        ("29/2", "14", "integer", None, False),
        ("14 or 15", "14", "integer", None, False),
        # round(1.21, 1) = 1.2 and round(1.25, 1) = 1.2 (half to even), round(1.26, 1) = 1.3.
        ("1.21", "1.2", "float", 1, True),
        ("1.25", "1.2", "float", 1, True),
        ("1.26", "1.2", "float", 1, False),
        ("1.3", "1.2", "float", 1, False),
        ("0", "0.0", "float", 1, True),
        ("-4.31", "-4.3", "float", 1, True),
        ("4.3", "-4.3", "float", 1, False),
        # 5/3 = 1.666..., 5 sqrt 3 = 8.660...
        ("5/3", "1.67", "float", 2, True),
        (r"5\sqrt{3}", "8.66", "float", 2, True),
        ("1.7", "1.67", "float", 2, False),
        ("1e400", "1.2", "float", 1, False),
        ("nan", "1.2", "float", 1, False),
        # Lists are ordered; brackets and spaces are not part of them.
        ("[2014, 2016]", "[2014, 2016]", "list", None, True),
        ("2014, 2016", "[2014, 2016]", "list", None, True),
        ("(2014,2016)", "[2014, 2016]", "list", None, True),
        ("[2016, 2014]", "[2014, 2016]", "list", None, False),
        ("[2014]", "[2014, 2016]", "list", None, False),
        ("2014 and 2016", "[2014, 2016]", "list", None, True),
        ("Yes", "yes", "text", None, True),
    ],
)
def test_mathvista_types(
    grader: Grader, answer: str, gold: str, kind: str, precision: int | None, expected: bool
) -> None:
    verdict = grader.grade(rf"\boxed{{{answer}}}", gold, answer_type=kind, precision=precision)  # type: ignore[arg-type]
    assert verdict.correct is expected


@pytest.mark.parametrize(
    ("answer", "gold", "unit", "expected"),
    [
        # 5% of 8.00 is 0.4.
        ("8.39", "8.00", None, True),
        ("7.61", "8.00", None, True),
        ("8.41", "8.00", None, False),
        ("-8.00", "8.00", None, False),
        ("0", "0", None, True),
        ("0.001", "0", None, False),
        (r"\frac{8\pi}{3}", "8.00", None, True),  # 8.378
        ("8.1 kJ", "8.00", r"\mathrm{~kJ}", True),
        ("8.1", "8.00", r"\mathrm{~kJ}", True),
        ("8.1 kg", "8.00", r"\mathrm{~kJ}", False),
        # A unit that holds a power of ten: the number alone, or the whole value.
        ("3.4", "3.38", r"$10^{-19} \mathrm{~J}$", True),
        (r"3.4 \times 10^{-19} J", "3.38", r"$10^{-19} \mathrm{~J}$", True),
        (r"3.4 \times 10^{-18} J", "3.38", r"$10^{-19} \mathrm{~J}$", False),
        ("3.4 J", "3.38", r"$10^{-19} \mathrm{~J}$", False),
    ],
)
def test_scibench_tolerance(grader: Grader, answer: str, gold: str, unit: str | None, expected: bool) -> None:
    verdict = grader.grade(rf"\boxed{{{answer}}}", gold, relative_tolerance=0.05, unit=unit)
    assert verdict.correct is expected


def test_an_answer_in_another_unit_than_asked_for_is_wrong(grader: Grader) -> None:
    assert grader.grade(r"\boxed{5 years}", "5", unit="years", answer_type="integer").correct
    assert grader.grade(r"\boxed{5}", "5", unit="years", answer_type="integer").correct
    assert not grader.grade(r"\boxed{5 days}", "5", unit="years", answer_type="integer").correct
    assert not grader.grade(r"\boxed{5 days}", "5", unit="years").correct
    assert grader.grade(r"\boxed{5}", "5", unit="million dollars").correct


# --- the whole ---------------------------------------------------------------------------------------------------


def test_an_unknown_policy_is_refused_in_words() -> None:
    with pytest.raises(UserError, match="letter_or_value"):
        Grader("strict")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="letter_or_value"):
        grade("", "5", mcq_policy="strict")  # type: ignore[arg-type]


def test_the_version_of_the_relation_is_part_of_the_graders() -> None:
    assert GRADER[0] == "mmcorl-grader"
    assert GRADER[1].endswith(f".{RELATION[1]}")


def test_threads_share_one_grader(grader: Grader) -> None:
    results: list[bool] = []

    def work() -> None:
        for k in range(200):
            results.append(grader.grade(rf"\boxed{{\sqrt{{{k * k}}}}}", str(k)).correct)
            results.append(not grader.grade(f"<answer>{k}</answer>", str(k + 1)).correct)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [True] * 1600


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared data folder is absent")
def test_the_catalogue_of_graded_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cases = [json.loads(line) for line in (DATA / "grader_cases.jsonl").read_text(encoding="utf-8").splitlines()]
    wrong, slow = [], []
    for case in cases:
        asked: list[object] = []

        def judge(*request: object, asked: list[object] = asked) -> bool:
            asked.append(request)
            return True

        started = time.perf_counter()
        rules = grade(case["response"], case["gold"], case.get("question"), case.get("choices"))
        if time.perf_counter() - started >= 1.0:
            slow.append(case["id"])
        # What a judge who knows would say: yes to the rows marked judge, and to nothing else.
        judged = grade(case["response"], case["gold"], case.get("question"), case.get("choices"), judge)
        match case["stage"]:
            case "rule":
                right = rules.correct is case["expected"]
            case "reject":
                right = not rules.correct and not judged.correct and not asked and rules.stage == "no_answer"
            case _:
                right = judged.correct
        if not right:
            wrong.append((case["id"], rules))
    assert wrong == []
    assert slow == []
    assert list(tmp_path.iterdir()) == []
