"""How fast rules grade, beside math-verify's parse and verify of the same pairs, in one run.

    python tests/bench/grading.py              # cold and warm rates, and a whole four-benchmark regrade
    python tests/bench/grading.py --million    # memory over 1,000,000 responses

Answers are golds of MATH (from the shared data folder, else made up in its proportions) in the variants that
models write, right and wrong; options as in We-Math and MathVision. math-verify is asked as its own metric asks
it: gold and answer each in dollars, parsed and verified.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import time
from pathlib import Path

from eval_suite.grading import Grader
from eval_suite.items import Item, Response
from tests.paths import DATA

THOUGHT = "Let the side be $s$, so that $s^2 + 2s = 15$ and $(s+5)(s-3) = 0$. Only $s = 3$ is positive. " * 10
FOUR_BENCHMARKS = 9720


def golds() -> list[str]:
    """Known answers of MATH levels 3-5."""
    path = DATA / "text" / "math_level345_train.json"
    if path.is_file():
        return [str(row["answer"]) for row in json.loads(path.read_text(encoding="utf-8"))]
    rng = random.Random(0)
    forms = (
        [lambda: str(rng.randrange(-50, 900))] * 6
        + [lambda: rf"\frac{{{rng.randrange(1, 40)}}}{{{rng.randrange(2, 60)}}}"] * 2
        + [lambda: rf"{rng.randrange(2, 9)}\sqrt{{{rng.choice((2, 3, 5, 6, 7))}}}"]
        + [lambda: rf"({rng.randrange(9)},{rng.randrange(9)})"]
        + [lambda: rf"x^2+{rng.randrange(2, 9)}x+{rng.randrange(1, 9)}"]
    )
    return [rng.choice(forms)() for _ in range(8890)]


def variant(gold: str, rng: random.Random, others: list[str]) -> str:
    """The gold as a model might write it, or another answer instead."""
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(others)
    if kind < 0.60:
        return gold
    if kind < 0.70:
        return f"${gold}$"
    if kind < 0.80:
        return gold.replace(r"\frac", r"\dfrac").replace(",", ", ")
    if kind < 0.86:
        return gold.replace(" ", "") + "."
    if kind < 0.92:
        return rf"\left({gold}\right)" if gold.isalnum() else f" {gold} "
    return f"x = {gold}" if "=" not in gold else gold


def pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """(gold, answer) pairs; no pair is made twice on purpose, so that nothing is answered from memory alone."""
    rng = random.Random(seed)
    known = golds()
    return [(gold, variant(gold, rng, known)) for gold in rng.choices(known, k=count)]


def free_form(made: list[tuple[str, str]]) -> list[tuple[Item, Response]]:
    """The pairs as items and whole responses, reasoning included."""
    return [
        (
            Item("bench", str(k), "What is it?", gold),
            Response("bench", str(k), 0, f"<think>{THOUGHT}</think> <answer>{answer}</answer>", "stop"),
        )
        for k, (gold, answer) in enumerate(made)
    ]


def multiple_choice(count: int, seed: int) -> list[tuple[Item, Response]]:
    """Options by letter, by value, and with both."""
    rng = random.Random(seed)
    made = []
    for k in range(count):
        choices = tuple(rf"${value}^\circ$" for value in rng.sample(range(10, 180, 5), 5))
        gold, chosen = rng.randrange(5), rng.randrange(5)
        value = choices[chosen].strip("$")
        answer = ("ABCDE"[chosen], value, f"{'ABCDE'[chosen]}. {value}", value.removesuffix(r"^\circ"))[
            rng.randrange(4)
        ]
        text = f"<think>{THOUGHT}</think> <answer>{answer}</answer>"
        made.append(
            (Item("bench", str(k), "Which?", "ABCDE"[gold], choices=choices), Response("bench", str(k), 0, text))
        )
    return made


def rate(grader: Grader, work: list[tuple[Item, Response]]) -> tuple[float, int]:
    """(responses per second, how many are credited)."""
    started = time.perf_counter()
    credited = sum(grader.rule(item, response).rule for item, response in work)
    return len(work) / (time.perf_counter() - started), credited


def math_verify_rate(made: list[tuple[str, str]]) -> tuple[float, int]:
    """The same for math-verify."""
    from math_verify import parse, verify

    parse("$1$")
    started = time.perf_counter()
    credited = sum(bool(verify(parse(f"${gold}$"), parse(f"${answer}$"))) for gold, answer in made)
    return len(made) / (time.perf_counter() - started), credited


def resident() -> float:
    """MiB of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def throughput(count: int) -> dict[str, float]:
    """Rates by name; the grader is new, and nothing was read before."""
    made = pairs(count, 1)
    with Grader() as grader:
        cold, credited = rate(grader, free_form(made))
        symbolic, timeouts = grader.relation.symbolic, grader.relation.timeouts
        warm, _ = rate(grader, free_form(made))
    theirs, their_credit = math_verify_rate(made[: max(200, count // 4)])
    with Grader() as grader:
        regrade = free_form(pairs(FOUR_BENCHMARKS // 2, 2)) + multiple_choice(FOUR_BENCHMARKS // 2, 3)
        started = time.perf_counter()
        rate(grader, regrade)
        seconds = time.perf_counter() - started
    print(f"rules, cold            {cold:10,.0f} responses/s   {credited}/{count} credited")
    print(f"rules, again           {warm:10,.0f} responses/s")
    print(f"  asked math-verify    {symbolic} times, {timeouts} out of time")
    print(f"math-verify            {theirs:10,.0f} pairs/s       {their_credit}/{max(200, count // 4)} credited")
    print(f"cold rules are {cold / theirs:.1f} times math-verify")
    print(f"{len(regrade):,} responses regraded in {seconds:.2f} s")
    return {"cold": cold, "warm": warm, "math_verify": theirs, "ratio": cold / theirs, "regrade_seconds": seconds}


def memory(count: int = 1_000_000) -> list[float]:
    """MiB after each tenth of `count` responses, all different."""
    known = golds()
    rng = random.Random(4)
    sizes = []
    with Grader() as grader:
        for tenth in range(10):
            for k in range(count // 10):
                gold = rng.choice(known)
                answer = variant(gold, rng, known) if k % 3 else str(rng.random())
                item = Item("bench", "0", "What is it?", gold)
                grader.rule(item, Response("bench", "0", 0, rf"So it is \boxed{{{answer}}}"))
            gc.collect()
            sizes.append(resident())
            print(f"{(tenth + 1) * count // 10:>9,} responses: {sizes[-1]:.0f} MiB", flush=True)
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--million", action="store_true", help="memory over 1,000,000 responses instead of speed")
    parser.add_argument("--count", type=int, default=4000, help="pairs for the comparison with math-verify")
    settings = parser.parse_args()
    if settings.million:
        memory()
    else:
        throughput(settings.count)


if __name__ == "__main__":
    main()
