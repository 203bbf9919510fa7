"""The one relation: what is the same, what is not, and that it is a relation."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_answers_canonical import ANSWERS

from mmcorl.answers import Equivalence, canonical, extract
from mmcorl.errors import UserError
from paths import DATA, ROOT

# Equal, and nothing in process can tell.
ALGEBRA = (r"\ln x+x", r"x+\ln x")


@pytest.fixture(scope="module")
def relation() -> Iterator[Equivalence]:
    with Equivalence() as relation:
        relation.same(*ALGEBRA)  # start the worker once, outside any timed test
        yield relation


SAME = [
    ("0.5", r"\frac12"),
    (r"\frac{2}{4}", r"\frac{1}{2}"),
    ("2^{10}", "1024"),
    (r"2 \cdot 3^5", "486"),
    ("5!", "120"),
    ("7.75", r"7 \frac{3}{4}"),
    ("1e3", "1000"),
    (r"3\times10^8", "300000000"),
    (r"\sqrt[3]{8}", "2"),
    # Six decimals stand for the value they round to, fewer do not.
    ("0.333333", "1/3"),
    ("1.414214", r"\sqrt2"),
    ("50.265482", r"16\pi"),
    # ... or that they cut off, when it goes on: 2/3 = 0.6666667, pi = 3.14159265.
    ("0.666666", "2/3"),
    ("3.141592", r"\pi"),
    ("0.1666...", "1/6"),
    ("3/5 = 0.6", "0.6"),
    # A unit may be missing on one side.
    ("5", "5 cm"),
    ("5 cm", r"5\text{ cm}"),
    ("12 km/h", "12 kmh"),
    ("2191.7 m", "2191.7 metres"),
    ("12厘米", "12"),
    (r"36\pi\text{ cm}^3", r"36\pi"),
    ("69{degrees}", r"69^\circ"),
    ("2{ft.}", "2"),
    (r"\$5", "5 dollars"),
    (r"\$32,\!000", "32000"),
    ("160~cm", "160"),
    (r"30\sqrt{3} m", r"30\sqrt{3}"),
    ("90^o", "90°"),
    ("10 km·h⁻¹", "10 km/h"),
    ("28%", "28"),
    ("28%", "0.28"),
    ("15.5", "Weekly water intake $=15.5$ Litres"),
    # A name may be missing on one side.
    ("x = 5", "5"),
    ("$$r=7.00$$", "7"),
    (r"\angle ABC=45^\circ", "45"),
    ("y=2x+1", "2x+1"),
    ("f(x)=-(x+1)^2+2", "-x^2-2x+1"),
    ("k = 2+3 = 5", "5"),
    ("B. 45", "B"),
    ("B. 45", "45"),
    ("(A) 12", "A: 12"),
    # Lists, sets, intervals, matrices.
    ("1 and 2", "2, 1"),
    (r"\{1,2\}", r"\{2,1\}"),
    (r"\pm 2", "2,-2"),
    (r"1\pm\sqrt2", r"1-\sqrt2, 1+\sqrt2"),
    ("y=2,x=1", "x=1, y=2"),
    ("1, 2", "x=1, y=2"),
    ("3, 2", "x_1=2, x_2=3"),
    (r"x\in\{1,2\}", "2, 1"),
    (r"x\in(2,\infty)", "x>2"),
    (r"(-\infty,2)\cup(3,+\infty)", r"(3,\infty)\cup(-\infty,2)"),
    ("(+3,-4)", "(3,-4)"),
    ("3:45 p.m.", "3:45 PM"),
    ("(3, -4)", "(3,-4)"),
    ("(0.5,2)", r"\left(\frac12, 2\right)"),
    (r"[1,6] \cup [-6,-1]", r"[-6,-1]\cup[1,6]"),
    (r"\begin{bmatrix}1&2\\3&4\end{bmatrix}", r"\begin{pmatrix}1 & 2 \\ 3 & \frac82\end{pmatrix}"),
    ("1:2", "1 : 2"),
    # Symbolic.
    (r"\sqrt{12}", r"2\sqrt{3}"),
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    (r"\ln 4", r"2\ln 2"),
    (r"\frac{x}{7}+\frac{2}{7}", r"\frac{x+2}{7}"),
    ("x^2+2x+1", "(x+1)^2"),
    ("0.5x", r"\frac{x}{2}"),
    ("3+4i", "4i+3"),
    (r"\sin(30°)", r"\frac12"),
    (r"9\pi/4", r"\frac{9}{4}\pi"),
    ("2x+y=5", "y=5-2x"),
    ("x^2+y^2=49", "y^2+x^2=49"),
    ("x>2", r"(2,\infty)"),
    ("2<x", "x>2"),
    (r"\log_2 8", "3"),
    (r"\sin^2x+\cos^2x", "1"),
    (r"\frac{10!}{3!7!}", "120"),
    ("1.5 x 10^3", "1500"),
    # Words.
    ("Yes.", r"\text{yes}"),
    ("nan", "nan"),
]

DIFFERENT = [
    # Sign, digit, variable, letter.
    ("-5", "5"),
    ("9007199254740993", "9007199254740992"),
    (r"t^2+1", r"s^2+1"),
    ("a+b", "c+b"),
    ("x", "X"),
    ("2c", "2"),
    (r"\text{east}", r"\text{west}"),
    ("seat", "east"),
    ("no", "on"),
    ("AB", "ab"),
    ("5 am", "5 pm"),
    ("k=5", "m=5"),
    ("X+Y=Z", "x+y=z"),
    ("x2", "2x"),
    # Points of a figure are no factors.
    (r"\angle ABC", r"\angle ACB"),
    (r"\vec{AB}", r"\vec{BA}"),
    (r"\overline{ab}", r"\overline{ba}"),
    # Approximations.
    ("0.33", "1/3"),
    ("3.14", r"\pi"),
    ("3.14159", r"\pi"),
    ("1/55", "1/60"),
    ("1.0000001", "1"),
    ("0.000001", "0.0000014"),
    ("0.999999", "1"),
    ("3.141593", "3.141592"),
    ("1,2", "1.2"),
    ("0.3 = 1/3", "1/3"),
    # Nothing is known of these at a point, so nothing is equal: a derivative, a pole.
    (r"m\frac{dv}{dt}+bv=f", r"z\frac{dv}{dt}+bv=f"),
    (r"c^{2}(\gamma^{2}-1)\sin^{2}\theta", r"c^{2}(\gamma^{2}-4)\sin^{2}\theta"),
    # Equal at many points, and not everywhere.
    ("|x-3|", "3-x"),
    (r"\sqrt{x^2+2x+1}", "x+1"),
    (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
    (r"\frac{1}{2^{98}}", r"\frac{1}{2^{99}}"),
    ("2^{-99}", "0"),
    (r"10^{-30}\sqrt2", r"10^{-31}\sqrt2"),
    (r"\sqrt{2}", r"\sqrt{2}+10^{-30}"),
    (r"\frac{3^{1008}-1}{3^{1009}}", "1/3"),
    (r"1-\frac1e", r"1+\frac1e"),
    (r"4\sqrt(2)", "4"),
    ("1 1/2", "11/2"),
    ("14.3", "14"),
    ("50.3", "50.27"),
    # Units.
    ("12 minutes", "12 hours"),
    ("5 inches", "5 feet"),
    ("5 cm", "5 cm^2"),
    (r"5^\circ", "5 rad"),
    ("5 million", "5"),
    (r"\tan 15^\circ", r"\tan 15"),
    ("5 or more", "5"),
    ("1010_2", "1010"),
    ("12_3", "12_4"),
    # Lists.
    (",".join(["1"] * 2000), "1"),
    ("1,1", "1"),
    ("6, 5", "x=5, y=6"),
    ("1, 2, 3, ...", "1, 2, 3"),
    ("1, 2, 3", "1, 2"),
    ("32, 349", "32349"),
    ("n=1, 2, 3", "n=2, 3, 4"),
    ("(1,2)", "[1,2]"),
    ("(1,2)", "(2,1)"),
    ("[6,8)", "[6,8]"),
    (r"\pm 2021", "2021"),
    ("x=5,y=6", "x=6,y=5"),
    ("[0,1,2]", "[0,2,1]"),
    # Ratios and times are no quotients.
    ("1:2", "1/2"),
    ("1:2", "2:1"),
    ("1:00", "12:00"),
    ("12:30", "12.5"),
    ("2014-05-03", "2006"),
    ("--5", "5"),
    ("a square", "a"),
    # Relations.
    ("11a+c", "7 = 11a+c"),
    ("x>2", "x<2"),
    ("x>2", r"x\ge 2"),
    ("x^2=4", "x=2"),
    ("x^2+1=0", "x^2+2=0"),
    (r"x\ne 2", "x=2"),
    (r"\sqrt{x^2}", "x"),
    (r"\infty", r"-\infty"),
    (r"\infty", r"\infty+1"),
    ("|x|", "x"),
    (r"\log 8", r"\ln 8"),
    # Not mathematics.
    ("a if True else b", "a"),
    ("__import__('os').system('true')", "0"),
    ("lambda: 0", "1"),
    ("nan", "5"),
    ("inf", "5"),
    ("1/0", "2/0"),
    ("{gold}", "5"),
    ("5 is wrong, it is 7", "5"),
    ("not 5", "5"),
    ("N/A", "A"),
    (r"\def\x{\x\x}\x", "1"),
    ("(-3,1]", "domain: [-4, 0) and range: (-3, 1]"),
    ("decreasing on (1,3)", "increasing on (1,3)"),
]


@pytest.mark.parametrize(("a", "b"), SAME)
def test_the_same(relation: Equivalence, a: str, b: str) -> None:
    assert relation.same(a, b)
    assert relation.same(b, a)


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_not_the_same(relation: Equivalence, a: str, b: str) -> None:
    assert not relation.same(a, b)
    assert not relation.same(b, a)


def test_no_answer_is_the_same_as_nothing(relation: Equivalence) -> None:
    assert not relation.same(None, None)
    assert not relation.same("5", None)


@pytest.mark.parametrize(
    ("answer", "gold", "choices", "expected"),
    [
        ("80", "D", ["$48^\\circ$", "$60^\\circ$", "$72^\\circ$", "$80^\\circ$"], True),
        ("96", "A", [r"$3 \cdot 2^{5}$", "$3^{6}$", "$6^{3}$", r"$2 \cdot 3^{5}$"], True),
        # By value through algebra: 5/3 * pi is option B.
        ("5/3 * pi", "B", [r"\frac { 3 } { 5 } \pi", r"\frac { 5 } { 3 } \pi", r"5 \pi"], True),
        ("5/3 * pi", "A", [r"\frac { 3 } { 5 } \pi", r"\frac { 5 } { 3 } \pi", r"5 \pi"], False),
        ("3b-6a", "E", ["3 a+6 b", "3 b-6 a", "6 b-3 a", "6 a+3 b", "6 a-3 b"], False),
        ("A", "Yes", ["Yes", "No"], True),
        ("yes.", "A", ["Yes", "No"], True),
        ("B. 60°", "B", ["30°", "45°", "60°", "90°"], False),
        ("B. 60°", "C", ["30°", "45°", "60°", "90°"], False),
        ("B. 60°", "60°", ["30°", "45°", "60°", "90°"], False),
        ("D and C", "C\nD", ["1", "2", "3", "4"], True),
        ("C", "C\nD", ["1", "2", "3", "4"], False),
        (
            "D is the midpoint of AC",
            "D",
            ["AB = AC", "BD is a median", "AC = 2AD", "angle A = angle C"],
            False,
        ),
        # Neither names an option: two agents may still agree.
        ("70", "70.0", ["30", "45", "60", "90"], True),
        ("70", "A", ["30", "45", "60", "90"], False),
    ],
)
def test_multiple_choice(relation: Equivalence, answer: str, gold: str, choices: list[str], expected: bool) -> None:
    assert relation.same(answer, gold, choices) is expected
    assert relation.same(gold, answer, choices) is expected


def test_classes_partition_in_first_seen_order(relation: Equivalence) -> None:
    answers = ["1/2", None, "3", "0.5", "three", "3.0", None, r"\frac{2}{4}"]
    assert relation.classes(answers) == [0, None, 1, 0, 2, 1, None, 0]
    # `5` joins the one unit there is; beside two it may mean either and stays alone.
    assert relation.classes(["5 cm", "5", "5.0"]) == [0, 0, 0]
    assert relation.classes(["5 cm", "5 m", "5"]) == [0, 1, 2]
    assert relation.classes(["90", "D", "c", "60°"], ["30°", "45°", "60°", "90°"]) == [0, 0, 1, 1]
    assert relation.classes([]) == []


@settings(max_examples=150, deadline=None)
@given(ANSWERS, ANSWERS)
def test_reflexive_and_symmetric(relation: Equivalence, a: str, b: str) -> None:
    assert relation.same(a, a)
    assert relation.same(a, b) == relation.same(b, a)
    assert relation.same(a, canonical(a))


MIXED = st.lists(
    st.one_of(
        st.none(),
        st.sampled_from(["x", "y", "x=1", "A", "(A)", "28%", "28", "0.28"]),
        st.builds("{}{}".format, st.sampled_from(["1", "1.0", "5"]), st.sampled_from(["", " cm", " m", " kg"])),
    ),
    max_size=12,
)


@settings(max_examples=100, deadline=None)
@given(MIXED, st.randoms())
def test_classes_are_a_partition_whatever_the_order(
    relation: Equivalence, answers: list[str | None], chance: Random
) -> None:
    classes = relation.classes(answers)
    given = [i for i, answer in enumerate(answers) if answer is not None]
    for i in given:
        for j in given:
            # By definition: what is in one class equals the same answers, itself among them.
            alike = all(relation.same(answers[i], answers[k]) == relation.same(answers[j], answers[k]) for k in given)
            assert (classes[i] == classes[j]) == alike
    assert [classes[i] for i in given if classes[i] not in classes[:i]] == list(range(len({classes[i] for i in given})))
    order = chance.sample(range(len(answers)), len(answers))
    again = relation.classes([answers[i] for i in order])
    assert {(i, j) for i in given for j in given if classes[i] == classes[j]} == {
        (order[i], order[j])
        for i in range(len(order))
        for j in range(len(order))
        if again[i] is not None and again[i] == again[j]
    }
    assert all(classes[i] is None for i in range(len(answers)) if i not in given)


def test_settings_are_refused_in_words() -> None:
    for wrong in ({"timeout": 0.0}, {"memory_mb": 10}, {"workers": 0}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            Equivalence(**wrong)  # type: ignore[arg-type]


# --- hostile text ---------------------------------------------------------------------------------------

HOSTILE = {
    "power tower": "9**9**9**9",
    "latex tower": r"9^{9^{9^{9}}}",
    "nested tower": r"\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}",
    "huge exponent": "2^{3000000000}",
    "factorial": "99999999!",
    "iterated factorial": "((9!)!)!",
    "symbolic power": "(x+1)**99999",
    "binomial": r"\binom{10000000}{5000000}",
    "product": r"\prod_{k=1}^{10000000} k",
    "integral": r"\int_0^1 e^{-x^2}\sin(x^3)\,dx",
    "exponent notation": "1e999999999",
    "digits": "9" * 1_000_000,
    "digits and decimals": "1" * 400 + ".123456",
    "many decimals": "0." + "1" * 3900,
    "decimals": "0." + "3" * 1_000_000,
    "braces": "{" * 100_000,
    "closed braces": "{" * 50_000 + "}" * 50_000,
    "parentheses": "(" * 2000 + "1" + ")" * 2000,
    "fractions": r"\frac{1}{" * 300 + "2" + "}" * 300,
    "roots": r"\sqrt{" * 300 + "2" + "}" * 300,
    "nulls": "\x00" * 1000 + "5\x00",
    "surrogates": "\ud800\udfff5",
    "tags": "<answer>" * 8000,
    "dollars": "$" * 100_000,
    "percents": "%" * 4000,
    "terms": "+".join(f"a{i}" for i in range(1000)),
    "commas": "," * 4000,
    "equals": "=" * 4000,
    "signs": r"\pm" * 1000,
    "letters": "a" * 4000,
    "minus": "-" * 4000,
    "unions": r"(1,2)\cup" * 400,
    "columns": r"\begin{matrix}" + "1&" * 1900 + r"\end{matrix}",
    "code": "exec('raise SystemExit')",
    "negative exponents": "2^{-" * 500,
    "ratio": "1:" * 2000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_cheap_and_equals_nothing_else(relation: Equivalence, text: str) -> None:
    others = ["1.5", "x", r"\sqrt{2}", "(1,2)", "1", r"\infty", "B"]
    started = time.perf_counter()
    same = [other for other in others if relation.same(text, other) or relation.same(other, text, ["1", "2"])]
    assert same == []
    assert relation.same(text, text + "")
    # Fourteen comparisons, no timeout among them.
    assert time.perf_counter() - started < 1.0


def test_hostile_pairs(relation: Equivalence) -> None:
    texts = list(HOSTILE.values())
    started = time.perf_counter()
    classes = relation.classes(texts)
    assert len(set(classes)) >= len(texts) - 1
    assert time.perf_counter() - started < 10


# --- the processes --------------------------------------------------------------------------------------

# Passes every static screen, and the algebra system works on it for more than six seconds.
SLOW = (r"x^{199}+x^{101}+x^3+x>2", r"(2,\infty)")


def test_what_needs_no_mathematics_starts_no_process() -> None:
    with Equivalence() as relation:
        relation.classes(
            [
                "5",
                "5.0",
                "x",
                "x = 5",
                "B",
                "(1,2)",
                "1/2",
                "yes",
                r"\sqrt{2}",
                r"\pi",
                "5 cm",
                "2x",
                "2x+2",
                "2(x+1)",
                r"\sqrt{12}",
                r"2\sqrt{3}",
                None,
            ]
        )
        relation.same("B", "45°", ["30°", "45°"])
        assert relation._pool.pids == []
        assert relation.symbolic == 0
        assert relation.same(*ALGEBRA)
        assert len(relation._pool.pids) == 1
        assert relation.symbolic == 1
        assert relation.same(*ALGEBRA)
        assert (relation.symbolic, relation.cache_hits) == (1, 1)


def test_a_comparison_that_takes_too_long_is_ended_and_counted() -> None:
    with Equivalence(timeout=0.3) as relation:
        relation.warm_up()
        (first,) = relation._pool.pids
        started = time.perf_counter()
        assert not relation.same(*SLOW)
        assert (relation.symbolic, relation.timeouts) == (1, 1)
        # The process that ran out of time is gone; the one in its place has begun to load.
        assert relation._pool.pids != [first]
        assert not _alive(first)
        # Remembered: no second wait.
        assert not relation.same(*reversed(SLOW))
        assert relation.timeouts == 1
        assert time.perf_counter() - started < 30


def test_the_next_comparison_after_a_timeout_gets_a_new_worker() -> None:
    with Equivalence(timeout=5) as relation:
        assert relation.same(r"\ln x+1", r"1+\ln x")
        (first,) = relation._pool.pids
        slot = relation._pool._all[0]
        assert slot.compare(r"\ln x+2", r"2+\ln x", 1e-6) == ("timeout", 1e-6)
        assert relation.same(r"\ln x+3", r"3+\ln x")
        assert relation._pool.pids not in ([first], [])


def test_a_worker_killed_from_outside_is_replaced() -> None:
    with Equivalence() as relation:
        assert relation.same(r"\ln x+1", r"1+\ln x")
        (pid,) = relation._pool.pids
        os.kill(pid, 9)
        assert relation.same(r"\ln x+2", r"2+\ln x")
        assert relation.timeouts == 0
        assert relation._pool.pids != [pid]


def test_a_fork_leaves_its_parents_worker_alone() -> None:
    with Equivalence() as relation:
        assert relation.same(r"\ln x+1", r"1+\ln x")
        (pid,) = relation._pool.pids
        child = os.fork()
        if child == 0:
            verdict = relation.same(r"\ln x+2", r"2+\ln x") and pid not in relation._pool.pids
            relation.close()
            os._exit(0 if verdict else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert relation.same(r"\ln x+3", r"3+\ln x")
        assert relation._pool.pids == [pid]


def test_closing_ends_the_processes() -> None:
    relation = Equivalence()
    assert relation.same(r"\ln x+1", r"1+\ln x")
    (pid,) = relation._pool.pids
    relation.close()
    assert not _alive(pid)
    relation.close()


def test_threads_share_one_relation() -> None:
    with Equivalence(workers=2) as relation:
        results: list[bool] = []

        def work(offset: int) -> None:
            for i in range(10):
                results.append(relation.same(rf"\ln x+{i + offset}", rf"{i + offset}+\ln x"))
                results.append(not relation.same(f"x+{i + offset}", f"x+{i + offset + 1}"))

        threads = [threading.Thread(target=work, args=(10 * k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert results == [True] * 80
        assert len(relation._pool.pids) <= 2
        assert relation.timeouts == 0


@pytest.mark.parametrize("busy", [False, True])
def test_a_killed_parent_leaves_no_orphan(busy: bool) -> None:
    code = (
        "import sys, threading, time\n"
        "from mmcorl.answers import Equivalence\n"
        "relation = Equivalence(timeout=2.0)\n"
        # From a thread that ends: the worker must not die with the thread that started it.
        "thread = threading.Thread(target=relation.same, args=(r'\\ln x+1', r'1+\\ln x'))\n"
        "thread.start(); thread.join()\n"
        "assert 'torch' not in sys.modules\n"
        "print(relation._pool.pids[0], flush=True)\n"
        "assert relation.same(r'\\ln x+2', r'2+\\ln x') and relation.timeouts == 0\n"
        f"{'threading.Thread(target=relation.same, args=(*SLOW,)).start()' if busy else ''}\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    ).replace("*SLOW", f"{SLOW[0]!r}, {SLOW[1]!r}")
    root = ROOT
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=root)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert parent.stdout.readline() == "ready\n"
    assert _alive(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(pid)


def test_the_worker_imports_no_torch_and_nothing_of_ours() -> None:
    code = (
        "import runpy, sys\n"
        f"module = runpy.run_path({str(ROOT / 'mmcorl/answers/symbolic_worker.py')!r})\n"
        "compare = module['_comparison']()\n"
        "assert compare('x+1', '1+x') and not compare('x', 'y')\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(loaded & {'torch', 'transformers', 'numpy', 'mmcorl'}))\n"
    )
    out = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def _alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits for its parent does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


# --- the catalogue --------------------------------------------------------------------------------------


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared data folder is absent")
def test_the_catalogue_of_graded_cases(relation: Equivalence) -> None:
    cases = [json.loads(line) for line in (DATA / "grader_cases.jsonl").read_text(encoding="utf-8").splitlines()]
    credited = missed = 0
    for case in cases:
        # Options inside the question text are for the grader to parse.
        if case["stage"] == "judge" or (
            case.get("question") and not case.get("choices") and "Choices" in case["question"]
        ):
            continue
        started = time.perf_counter()
        answer = extract(case["response"]).answer
        verdict = relation.same(answer, case["gold"], case.get("choices"))
        assert time.perf_counter() - started < 1.0, case["id"]
        if case["stage"] == "reject":
            assert answer is None, case["id"]
        if not case["expected"]:
            assert not verdict, f"wrong credit: {case['id']} {answer!r} for {case['gold']!r}"
        elif verdict:
            credited += 1
        else:
            missed += 1
    # All 128 of the public part; the catalogue may grow.
    assert credited / (credited + missed) >= 0.97


def test_options_that_are_orders_stay_apart_though_they_read_as_one_number() -> None:
    # MathVision row 90: every option is -5 as arithmetic.
    choices = ("5-4-3-2-1", "5-2-3-4-1", "5-4-2-3-1", "5-2-1-4-3", "5-1-2-3-4")
    with Equivalence() as relation:
        assert [relation.same("A", choice, choices) for choice in choices] == [True, False, False, False, False]
        assert not relation.same("A", "B", choices)
        assert relation.same("B", "5-2-3-4-1", choices)


def test_an_interval_is_not_a_bare_list() -> None:
    with Equivalence() as relation:
        assert not relation.same("[0,1)", "0,1")
        assert not relation.same("[-1,2]", "-1,2")
        assert relation.same("(-1,1)", "-1,1")  # a point or tuple without its brackets
