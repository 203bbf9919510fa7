"""Hold the rules against verdicts that benchmarks published.

    python -m tests.bench.published MATH-V=FOLDER MathVista=FOLDER

The folders are checkouts of github.com/mathllm/MATH-V and github.com/lupantech/MathVista (bare repositories do). Each
published answer, as the benchmark itself extracted it, is graded by our rules in a tag, and the two verdicts are
counted against each other. Pairs that only one of the two credits go to OUT/NAME.jsonl, each once: whether they are
right is for readers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mmcorl.answers import Equivalence
from mmcorl.grading.reference import Reference
from mmcorl.grading.rules import apply_rules
from tests.bench.results import say

Published = tuple[str, Reference, bool]
"""An extracted answer, what it is held against, and the official verdict."""


class Repository:
    """The files of a checkout's last commit."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.command = folder, ("git", "-C", str(folder))

    def git(self, *words: str) -> str:
        return subprocess.run([*self.command, *words], check=True, capture_output=True, text=True).stdout

    def files(self, under: str, end: str) -> list[str]:
        """Return the files under a folder that are here; what a partial clone lacks is said."""
        listed = self.git("ls-tree", "-r", "--name-only", "HEAD", under).splitlines()
        named = [name for name in listed if name.endswith(end)]
        here = [
            name for name in named if not subprocess.run([*self.command, "cat-file", "-e", f"HEAD:{name}"]).returncode
        ]
        if absent := sorted({*named} - {*here}):
            say(f"{self.folder} lacks {len(absent)} of {len(named)} files: {', '.join(absent)}")
        return here

    def lines(self, name: str) -> Iterator[Any]:
        return map(json.loads, self.git("show", f"HEAD:{name}").splitlines())


def math_vision(repository: Repository) -> Iterator[Published]:
    rows = {row["id"]: row for row in repository.lines("data/test.jsonl")}
    references = {
        key: Reference(str(row["answer"]), row["question"], tuple(map(str, row["options"])) or None)
        for key, row in rows.items()
    }
    for name in repository.files("outputs", ".jsonl"):
        for line in repository.lines(name):
            if "correct" in line:
                yield str(line["model_answer"]), references[line["id"]], bool(line["correct"])


def math_vista(repository: Repository) -> Iterator[Published]:
    for name in repository.files("results", ".json"):
        document = json.loads(repository.git("show", f"HEAD:{name}"))
        rows = document.values() if isinstance(document, dict) else ()
        for row in rows:
            if isinstance(row, Mapping) and {"extraction", "true_false", "answer"} <= row.keys():
                yield str(row["extraction"]), vista_reference(row), bool(row["true_false"])


def vista_reference(row: Mapping[str, Any]) -> Reference:
    choices, precision = row.get("choices"), row.get("precision")
    known = row.get("answer_type") if row.get("answer_type") in ("integer", "float", "list", "text") else None
    digits = int(float(precision)) if precision not in (None, "") and known == "float" else None
    return Reference(
        *(str(row["answer"]), row.get("question"), tuple(map(str, choices)) if choices else None),
        answer_type=None if choices else known,
        precision=digits,
    )


READERS: Mapping[str, Callable[[Repository], Iterator[Published]]] = {"MATH-V": math_vision, "MathVista": math_vista}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", metavar="NAME=FOLDER", help=f"NAME is one of {', '.join(READERS)}")
    parser.add_argument("--out", type=Path, default=Path("runs") / "published")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with Equivalence() as relation:
        for name, _, folder in (text.partition("=") for text in options.checkouts):
            counts: Counter[tuple[bool, bool]] = Counter()
            pairs: dict[str, Counter[str]] = {"official": Counter(), "ours": Counter()}
            began = time.process_time()
            for answer, reference, official in READERS[name](Repository(Path(folder))):
                ours = apply_rules(f"<answer>{answer}</answer>", reference, relation, "letter_or_value").rule
                counts[official, ours] += 1
                if official != ours:
                    row = {
                        "answer": answer,
                        "gold": reference.gold,
                        "choices": reference.choices,
                        "question": reference.question,
                    }
                    pairs["ours" if ours else "official"][json.dumps(row)] += 1
            with (options.out / f"{name}.jsonl").open("w") as file:
                for credited_by, rows in pairs.items():
                    for row, times in rows.most_common():
                        file.write(json.dumps({"credited_by": credited_by, "times": times} | json.loads(row)) + "\n")
            both, official, ours, neither = (counts[key] for key in itertools.product((True, False), repeat=2))
            spent = time.process_time() - began
            say(f"{name}: {counts.total():,} answers, {spent:.0f} s; both credit {both:,}, none {neither:,}")
            say(f"  official alone {official:,}; ours alone {ours:,}, {len(pairs['ours']):,} different")


if __name__ == "__main__":
    main()
