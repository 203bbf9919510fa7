"""The rules of a problem in another scenario: both pairs printed in the paper, and what spoils them."""

from __future__ import annotations

import re

import pytest

from mmcorl.apps.rephrase import breach
from mmcorl.apps.rephrase.rules import split_options
from mmcorl.data import DataSettings, load_prompts

ASYMPTOTES = "How many vertical asymptotes does the graph of $y=\\frac{2}{x^2+x-6}$ have?"
REACTION = (
    "The function $f(t)=\\frac{2}{t^2+t-6}$ describes the temperature of a chemical reaction over time $t$. How many "
    "vertical asymptotes appear on the graph of this function?"
)
BISECTOR = (
    "In triangle $ABC$, $AB=AC=14$ and $BC=26$. What is the length of the shortest angle bisector in $ABC$? Express "
    "your answer in simplest radical form."
)
PARK = (
    "A triangular park has two equal sides of 14 meters and a third side of 26 meters. The city plans a path from each "
    "corner that bisects its angle, and will build only the shortest one. How long is that path? Express your answer "
    "in simplest radical form."
)
ROOT = "3\\sqrt{3}"


def reason(original: str, recast: str, answer: str | None = None) -> str | None:
    broken = breach(original, recast, style="scenario", answer=answer)
    return broken and broken.reason


def test_the_pairs_of_the_paper_pass_and_are_refused_as_wordings():
    assert reason(ASYMPTOTES, REACTION, "2") is None
    assert reason(BISECTOR, PARK, ROOT) is None
    assert breach(ASYMPTOTES, REACTION) is not None
    assert breach(BISECTOR, PARK) is not None


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("-6}", "-8}", "numbers"),
        ("t^2+t-6", "t^3+t-6", "numbers"),
        ("t^2+t-6", "t^2-6", "formulas"),
        ("t^2+t-6", "t^2-t-6", "formulas"),
        ("t^2+t-6", "t^2+s-6", "formulas"),
        ("\\frac{2}{t^2+t-6}", "\\frac{t^2+t-6}{2}", "formulas"),
        ("$f(t)=\\frac{2}{t^2+t-6}$", "f", "numbers"),
        ("t-6}$", "t-6}", "formulas"),
        ("How many", "Its graph has 2 of them. How many", "answer"),
        ("over time", "over 5 hours, in time", "numbers"),
    ],
)
def test_a_spoiled_reaction_is_refused(old, new, rule):
    assert old in REACTION
    assert reason(ASYMPTOTES, REACTION.replace(old, new), "2") == rule


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("14", "15", "numbers"),
        (" of 14 meters", "", "numbers"),
        ("a third side of 26 meters", "a longer third side", "numbers"),
        ("How long", "It is $3\\sqrt{3}$ meters long. How long", "numbers"),
        (PARK, BISECTOR, "changed"),
        (PARK, PARK * 9, "length"),
        (PARK, "A park has sides of 14, 14 and 26 meters.", "length"),
    ],
)
def test_a_spoiled_park_is_refused(old, new, rule):
    assert old in PARK
    assert reason(BISECTOR, PARK.replace(old, new), ROOT) == rule


OTHERS = [
    # Numbers are kept as values.
    ("What is $\\frac{1}{2}$ of 1,200?", "Ann gives half of her 1200 coins away. How many are that?", None),
    ("What is $50\\%$ of 84?", "Half of 84 birds fly off. How many?", None),
    ("Seven friends share 84 sweets. How many has each?", "84 tiles in seven rows: how many in a row?", None),
    ("Seven friends share 84 sweets. How many has each?", "84 tiles in eight rows: how many in a row?", "numbers"),
    ("The sum of $x_1$ and $x_2$ is 9, $x_1=4$. Find $x_2$.", "Ann and Bo own 9 cats, Ann 4. How many has Bo?", None),
    ("Evaluate $x^2$ at $x=-9$.", "A field has the side of 9 m. What is $s^2$?", None),
    ("Find $2x+7$ for $x=\\frac38$.", "A cab asks twice the miles and 7. What do $\\frac{3}{8}$ of a mile cost?", None),
    ("Solve $\\sin\\theta=\\frac12$.", "A ramp rises by $x$ with $\\sin x=\\frac{1}{2}$. What is $x$?", None),
    ("Evaluate $\\log_3 x$ at $x=81$.", "A rumor follows $\\log_2 x$ at $x=81$. What is it?", "numbers"),
    ("Find $\\sqrt{x+9}$ for $x=16$.", "A rope measures $\\sqrt{t}+9$ for $t=16$. How long is it?", "formulas"),
    ("What is 0.5 of 48?", "Of 48 candles 0.6 burn. How many burn?", "numbers"),
    # What decides the answer is left to the model, and so are small numbers in words.
    ("What is $\\frac{1}{2}$ of 84?", "A third of 84 birds fly off. How many?", None),
    ("What is the mean of 4, 8 and 9?", "Hikers walked 4, 8 and 9 miles. What is the median distance?", None),
    (
        "Solve $x^2+ex=1$ for $x>0$.",
        "A ball lands when $t^2+pt=1$, later than 0. When is that, exactly, for $1$?",
        "formulas",
    ),
    (
        "See [asy]draw((0,0)--(1,1));[/asy] and say why.",
        "A road: [asy]draw((0,0)--(1,2));[/asy] Say why, please.",
        "numbers",
    ),
]


@pytest.mark.parametrize(("original", "recast", "rule"), OTHERS)
def test_what_a_scenario_may_change(original, recast, rule):
    assert reason(original, recast) == rule


def test_rules_are_skipped_by_name():
    spoiled = REACTION.replace("How many", "Its graph has 2 of them. How many")
    assert breach(ASYMPTOTES, spoiled, frozenset({"answer"}), style="scenario", answer="2") is None


def test_hostile_texts_are_read_in_time():
    for text in ("9" * 20_000, "1/" * 9_999, "$" * 9_999, "{" * 9_999, "x=" * 9_999, "\\frac{1}{0} 0/0 1.2.3"):
        reason(f"How many? {text}", f"How many answers? {text}, of course", answer=text[:5000])


def test_problems_with_other_names_pass_and_changed_ones_do_not(shared_data):
    rows = load_prompts(DataSettings(source=str(shared_data / "text/math_level345_train.json"), recipe="math_level345"))
    names = {"x": "t", "t": "x", "n": "k", "k": "n"}
    verdicts: dict[str, set[str | None]] = {"renamed": set(), "changed": set()}
    for index in range(0, len(rows), 60):
        row = rows[index]
        stem, options = split_options(row.text)
        if "[asy]" in stem or "\\text" in stem:
            continue
        # Names in formulas only, commands as they are.
        renamed = re.sub(
            r"\$[^$]+\$", lambda f: re.sub(r"\\[A-Za-z]+|[xtnk]", lambda m: names.get(m[0], m[0]), f[0]), stem
        )
        verdicts["renamed"].add(
            reason(row.text, f"Suppose that this comes up at work. {renamed} Say so.{options}", row.gold)
        )
        # A number that is nowhere in the original; one for another of its numbers is left to the model that checks.
        new = next((digit for digit in "789" if digit not in row.text), None)
        if new and (digit := re.search(r"[2-6]", stem)):
            changed = stem.replace(digit[0], new)
            verdicts["changed"].add(reason(row.text, f"Suppose that this comes up at work. {changed} Say so.{options}"))
    assert verdicts["renamed"] == {None}
    assert None not in verdicts["changed"]
