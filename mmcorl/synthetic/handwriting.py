"""Numbers of two digits in real handwriting: a task on which errors come from few examples, not from a planted habit.

The 1,797 digits of 8x8 pixels are the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C.
Kaynak, UCI Machine Learning Repository, 1998, CC BY 4.0), as scikit-learn ships them in digits.csv.gz. One shuffle
divides them into three pools that share no digit: 600 from which models are taught, 700 of which rows of an even seed
are made, and 497 for those of an odd seed. So pictures of seed 1 are new to whoever was trained on those of seed 0.
"""

from __future__ import annotations

import gzip
import io
import random
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files

from mmcorl.synthetic.perception import PictureRow

QUESTION = "Which number is written here?"
SKILL = "number"
LABELS = "0123456789"
EACH = 6
"""Of each digit, how many a model is taught from."""
BLOCKS = 10
"""Sets of examples that share none."""
TAUGHT, TRAINED = len(LABELS) * EACH * BLOCKS, 700
"""Digits of the first two pools; the others are the third."""
SIDE = 56

Digit = tuple[str, bytes]
"""Label, and 64 grey values."""


def row(seed: int, index: int, *, draw: bool = True) -> PictureRow:
    """Make row `index` of a seed; the first `distinct()` rows are different pairs of digits."""
    pool = _digits()[TAUGHT + TRAINED :] if seed % 2 else _digits()[TAUGHT : TAUGHT + TRAINED]
    pairs = len(pool) ** 2
    # Golden-ratio step through all pairs, odd and prime to both pools.
    pair = random.Random(f"handwriting/{seed}").randrange(pairs) + _STRIDE * index
    return _row(index, [pool[digit] for digit in divmod(pair % pairs, len(pool))], draw)


def distinct() -> int:
    """Return how many first rows of one seed are different for certain."""
    return (len(_digits()) - TAUGHT - TRAINED) ** 2


def lesson(number: int, rows: int, *, imbalanced: bool = False) -> list[PictureRow]:
    """Make the rows from which a model is taught: pairs of the 60 digits of a set, from 1 on.

    Ten sets share none, then the digits are dealt anew. `imbalanced`: the 60 are drawn as they come, not 6 of each.
    """
    deal, block = divmod(number - 1, BLOCKS)
    rng = random.Random(f"handwriting/{'imbalanced' if imbalanced else 'deal'}/{deal}")
    pool: list[Digit] = []
    for label in [""] if imbalanced else LABELS:
        alike = [digit for digit in _digits()[:TAUGHT] if digit[0].startswith(label)]
        each = len(alike) // BLOCKS
        pool += rng.sample(alike, len(alike))[each * block :][:each]
    rng = random.Random(f"handwriting/lesson/{number}")
    return [_row(index, rng.choices(pool, k=2), True) for index in range(rows)]


_STRIDE = 152_657


@lru_cache
def _digits() -> Sequence[Digit]:
    lines = gzip.decompress((files(__package__) / "digits.csv.gz").read_bytes()).decode().split()
    digits = []
    for line in lines:
        *pixels, label = (int(float(value)) for value in line.split(","))
        digits.append((str(label), bytes(pixel * 255 // 16 for pixel in pixels)))
    random.Random("handwriting/pools").shuffle(digits)
    # The first pool has as many of each.
    seen = Counter[str]()
    taught = [digit for digit in digits if (seen.update(digit[0]) or seen[digit[0]]) <= EACH * BLOCKS]
    return [*taught, *(digit for digit in digits if digit not in taught)]


def _row(index: int, digits: Sequence[Digit], draw: bool) -> PictureRow:
    number = "".join(label for label, _ in digits)
    return PictureRow(index, SKILL, QUESTION, number, "", _png(digits) if draw else None)


def _png(digits: Sequence[Digit]) -> bytes:
    from PIL import Image

    image, half = Image.new("L", (SIDE, SIDE)), SIDE // 2
    for column, (_, pixels) in enumerate(digits):
        image.paste(
            Image.frombytes("L", (8, 8), pixels).resize((half, half), Image.Resampling.BILINEAR),
            (half * column, half // 2),
        )
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()
