"""The twelve pairs of the paper's table of error decoupling, as printed and as the only integers that fit them.

With 500 problems every printed share is a whole number of problems, and models that stand in several rows must agree
with themselves; one set of cells satisfies all rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from mmcorl.apps.analysis.diversity import ModelResponses, PairKind


@dataclass(frozen=True)
class Row:
    """One row: what is printed, and its cells."""

    a: str
    b: str
    kind: PairKind
    printed: tuple[str, str, str, str]
    """kappa with two decimals; c, w and u in percent with one."""
    cells: tuple[int, int, int, int, int]
    """Both right, only A, only B, neither; of neither, those with the same answer."""
    kappa: float
    """To four decimals."""
    accuracies: tuple[float, float]


ROWS = (
    Row("Llama-3.2-3B", "Phi-3.5-mini", "different_family", ("0.31", "32.8", "3.0", "53.0"),
        (101, 120, 44, 235, 15), 0.3104, (44.2, 29.0)),
    Row("Qwen2.5-3B", "Llama-3.2-3B", "different_family", ("0.38", "31.2", "2.4", "63.0"),
        (159, 94, 62, 185, 12), 0.3769, (50.6, 44.2)),
    Row("Qwen2.5-3B", "Phi-3.5-mini", "different_family", ("0.38", "31.2", "4.0", "55.4"),
        (121, 132, 24, 223, 20), 0.3791, (50.6, 29.0)),
    Row("Qwen2.5-3B", "MiniCPM3-4B", "different_family", ("0.41", "29.4", "4.4", "60.4"),
        (155, 98, 49, 198, 22), 0.4133, (50.6, 40.8)),
    Row("Qwen2.5-3B", "Qwen3-1.7B", "same_family", ("0.52", "24.2", "4.2", "63.2"),
        (195, 58, 63, 184, 21), 0.5158, (50.6, 51.6)),
    Row("Qwen3-1.7B", "Qwen3-1.7B", "seed", ("0.52", "24.0", "5.0", "66.4"),
        (212, 46, 74, 168, 25), 0.5178, (51.6, 57.2)),
    Row("Qwen2.5-3B", "Qwen2.5-3B", "seed", ("0.56", "22.0", "4.4", "62.6"),
        (203, 50, 60, 187, 22), 0.5597, (50.6, 52.6)),
    Row("Qwen2.5-7B", "Llama-3.1-8B", "different_family", ("0.42", "29.4", "1.8", "71.4"),
        (210, 114, 33, 143, 9), 0.4168, (64.8, 48.6)),
    Row("Qwen2.5-7B", "Qwen2.5-3B", "same_family", ("0.51", "24.2", "3.8", "69.8"),
        (228, 96, 25, 151, 19), 0.5143, (64.8, 50.6)),
    Row("Qwen2.5-7B", "Qwen3-1.7B", "same_family", ("0.51", "24.4", "4.0", "70.4"),
        (230, 94, 28, 148, 20), 0.5073, (64.8, 51.6)),
    Row("Llama-3.1-8B", "Llama-3.1-8B", "seed", ("0.51", "24.6", "3.0", "62.0"),
        (187, 56, 67, 190, 15), 0.5082, (48.6, 50.8)),
    Row("Qwen2.5-7B", "Qwen2.5-7B", "seed", ("0.58", "19.0", "5.2", "74.6"),
        (278, 46, 49, 127, 26), 0.5819, (64.8, 65.4)),
)  # fmt: skip


def draws(row: Row) -> tuple[ModelResponses, ModelResponses]:
    """Answers that fill the cells of a row: right is `0`, wrong answers are shared where the cells say so."""
    both, only_a, only_b, neither, same = row.cells
    outcomes = [(True, True)] * both + [(True, False)] * only_a + [(False, True)] * only_b + [(False, False)] * neither
    shared = len(outcomes) - neither + same  # the first `same` of the problems that neither gets right
    sheets = []
    for place, name in enumerate((row.a, row.b)):
        answers, correct = {}, {}
        for number, told in enumerate(outcomes):
            correct[str(number)] = told[place]
            twin = not any(told) and number < shared
            answers[str(number)] = "0" if told[place] else "1" if twin else str(2 + place)
        family = name.split(".")[0].rstrip("0123456789-") if name.startswith("Qwen") else name
        label = name if place == 0 or row.kind != "seed" else f"{name} #2"
        sheets.append(ModelResponses(label, name, answers, correct, family))
    return sheets[0], sheets[1]


def spelled(problem: str, a: str, b: str) -> bool:
    """The simplest relation: two answers are the same when they are written alike."""
    return a == b
