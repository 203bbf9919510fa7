"""Any string at all: no exception, no hang, no credit for rubbish, no process left behind."""

import os
import random
import resource
import time
from pathlib import Path

import pytest

from mmcorl.answers import Equivalence
from mmcorl.answers.options import LETTERS
from mmcorl.grading import grade

_TOKENS = r"""
\frac \dfrac \sqrt \left \right \text \mathrm \boxed \fbox \begin{matrix} \end{matrix} \cup \cap \in
\infty \cdot \times \div ^\circ \pi \theta \le \ge \ne \pm < > = + - * / ^ _ ! % & \\ , ; : . | ( )
[ ] { } \{ \} $ $$ \( \) \[ \] \sin \cos \ln \log \binom \int \sum \prod \lim \overline \approx
\def\x \input \quad \, \! ~ # @ ` ' " <answer> </answer> <think> </think> <|im_end|> #### A. B: (C)
选 答案 cm km/h degrees and or not is the x y z e i 0 1 2 7 42 3.14 1e9 1e999999 999999999999 ½ √ π ∞ °
² − × ① Ａ 掳 鲁 nan inf None True lambda __class__ \frac{1}{2} \sqrt{3} x^2 2^{10} 9^{9^9} 10^{10}
(1,2) [0,1) {1,2,3} 1:2 50% $5 x=5 y<3
"""
COMMANDS = _TOKENS.split()
SEEDS = [
    "9**9**9", "99999999!", r"\sqrt{" * 40, "{" * 500, "(" * 300 + ")" * 300, "1" * 5000, "0." + "3" * 3000, "," * 500,
    "=" * 300, r"\frac{1}" * 100, "-" * 400, "x" * 900, "+".join(f"a{k}" for k in range(300)), "\x00\x1b[31m", "\ud800",
    r"\begin{matrix}" * 40, "2^" * 200, "1:" * 300, r"\pm" * 100, "\u202e\u200b", "% \n" * 99, "[" * 300, "a,b;" * 200,
]  # fmt: skip


OPTIONS = ["1", "2", "3"], ["30°", "45°", "60°", "90°"], ["A", "B", "D"], ["yes", "no"], ["x+1", "1-x", "-x"]
GOLDS = [
    r"5",
    r"-1.5",
    r"\frac{1}{2}",
    r"2\sqrt{3}",
    r"x^2+1",
    r"(1,2)",
    r"[0,1)",
    r"12\text{cm}",
    r"B",
    r"Yes",
    r"x>2",
    r"y=2x+1",
]
FORMS = ("<answer>{}</answer>", r"\boxed{{{}}}", "{}", "<think>{0}</think><answer>{0}</answer>", "<answer>{}")
BRACKETS = ("()", "{}", "[]", (r"\frac{1}{", "}"), (r"\sqrt{", "}"), (r"\boxed{", "}"), ("2^{", "}"))
NUMBERS = ["{}", "-{}", "1e{}", "0.{}", "{}!", "2^{{{}}}", "1/{}", "{0}/{0}", "{}%", "{}cm", "{}.", ",{}"]


def rubbish(rng: random.Random) -> str:
    """LaTeX-like tokens in no order, code points, decoded bytes, nesting, numbers, or one piece over and over."""
    match rng.randrange(8):
        case 0 | 1 | 2:
            return rng.choice(("", " ")).join(rng.choices(COMMANDS, k=rng.randrange(1, 30)))
        case 3:  # from all of Unicode, lone surrogates included
            top = rng.choice((0x80, 0x250, 0x3000, 0xFFFF, 0x110000))
            return "".join(chr(rng.randrange(top)) for _ in range(rng.randrange(60)))
        case 4:
            return rng.randbytes(rng.randrange(80)).decode(
                "utf-8", rng.choice(("replace", "surrogateescape", "ignore"))
            )
        case 5:  # one construct in itself, closed or not
            (opening, closing), depth = rng.choice(BRACKETS), rng.choice((3, 20, 70, 400))
            return opening * depth + rng.choice("15x") + closing * rng.choice((0, depth - 1, depth, depth + 1))
        case 6:
            return rng.choice(NUMBERS).format("".join(rng.choices("0123456789", k=rng.choice((1, 5, 30, 400, 4400)))))
        case _:  # now and then up to a megabyte
            piece = rng.choice(COMMANDS + SEEDS)
            size = rng.choice((100, 1000, 5000)) if rng.random() < 0.99 else 1_000_000
            return piece * (size // len(piece) + 1)


def children() -> set[int]:
    """Process ids of this process's children."""
    tasks = Path("/proc/self/task")
    return {int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()}


def fuzz(count: int, seed: int) -> tuple[float, float]:
    """Grade `count` strings; (seconds of the slowest, MiB gained)."""
    rng = random.Random(seed)
    before, slowest, culprit = children(), 0.0, ""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Equivalence() as relation:
        relation.warm_up()
        for _ in range(count):
            text = rubbish(rng) if rng.random() < 0.9 else rng.choice(SEEDS)
            gold = rng.choice(GOLDS) if rng.random() < 0.8 else rubbish(rng)[:4000]
            # A letter alone may name no option, which is refused.
            gold = f"{gold}?" if gold.strip() in LETTERS else gold
            response = rng.choice(FORMS).format(text)
            started = time.process_time()
            verdict = grade(
                response,
                gold,
                rng.choice((None, text[:2000])),
                rng.choice((None, *OPTIONS)),
                relation=relation,
                finish_reason=rng.choice(("stop", "length", "unknown")),
                answer_type=rng.choice((None, None, None, "integer", "float", "list", "text")),
                precision=rng.choice((None, None, 1)),
                relative_tolerance=rng.choice((None, None, 0.05)),
                unit=rng.choice((None, None, "cm", text[:50])),
            )
            assert verdict.committed == (verdict.answer is not None)
            took = time.process_time() - started
            if took > slowest:
                slowest, culprit = took, response[:200]
        assert len(children() - before) <= 1
    assert children() <= before
    gained = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
    assert slowest < 2.0, culprit
    return slowest, gained


def test_a_thousand_strings_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fuzz(1_000, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "count", [pytest.param(10_000, marks=pytest.mark.slow), pytest.param(200_000, marks=pytest.mark.thorough)]
)
def test_many_thousand_strings_do_no_harm(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seed = int(os.environ.get("MMCORL_FUZZ_SEED", "2"))
    slowest, gained = fuzz(count, seed)
    print(f"slowest {slowest:.2f} s of CPU, {gained:.0f} MiB gained")
    # Bounded memories fill up once.
    assert gained < 512
    assert list(tmp_path.iterdir()) == []
