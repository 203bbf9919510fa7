"""Several data sets as one: the rows of each, one set after the other; `Batches` mixes them."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from mmcorl.answers.regions import Form
from mmcorl.data.row_parsing import BadRow
from mmcorl.data.settings import DataSettings
from mmcorl.data.sources import PromptSource, load_prompts
from mmcorl.types import Prompt


class Mixture(Sequence[Prompt]):
    """The rows of several sources in order, with ids `SET/ID`; the settings of the first say what bad rows do."""

    def __init__(self, parts: Sequence[PromptSource]) -> None:
        self.parts = tuple(parts)
        self.settings = self.parts[0].settings
        seen: Counter[str] = Counter()
        self._names: list[str] = []
        for part in self.parts:
            seen[part.name] += 1
            self._names.append(part.name if seen[part.name] == 1 else f"{part.name}#{seen[part.name]}")
        self._starts = [0, *accumulate(map(len, self.parts))]

    @property
    def name(self) -> str:
        """Short name for logs."""
        return " + ".join(self._names)

    @property
    def fingerprint(self) -> str:
        """Hash of those of the parts; see `PromptSource.fingerprint`."""
        return hashlib.sha256(" ".join(part.fingerprint for part in self.parts).encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: Any) -> Any:
        """Return the prompt of a row; for a slice, a list of prompts."""
        if isinstance(index, slice):
            return [self.read(row)[0] for row in range(len(self))[index]]
        return self.read(index)[0]

    def row_id(self, index: int) -> str:
        """Return the id of a row, `SET/ID`, without reading anything else of it."""
        number = bisect_right(self._starts, index) - 1
        return f"{self._names[number]}/{self.parts[number].row_id(index - self._starts[number])}"

    def stored_row(self, index: int) -> tuple[int, int]:
        """Return the set of a row and the stored row in it, as `PromptSource.stored_row` does."""
        number = bisect_right(self._starts, index) - 1
        return number, self.parts[number].stored_row(index - self._starts[number])

    def read(self, index: int) -> tuple[Prompt, tuple[str, ...]]:
        """Return the prompt of a row and what was left out of it, as `PromptSource.read` does."""
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        number = bisect_right(self._starts, index) - 1
        name = self._names[number]
        try:
            prompt, notes = self.parts[number].read(index - self._starts[number])
        except BadRow as bad:
            raise BadRow(bad.kind, bad.reason, f"{name}/{bad.row_id}") from bad
        return replace(prompt, row_id=f"{name}/{prompt.row_id}"), notes


Rows = PromptSource | Mixture
"""Rows as prompts, of one set or several."""


def load_mixture(train: DataSettings, also: Sequence[DataSettings], form: Form | None = None) -> Rows:
    """Open the training data: `train` alone, or with the sets of `data.also` behind it. Otherwise as `load_prompts`."""
    first = load_prompts(train, form)
    return Mixture([first, *(load_prompts(each, form) for each in also)]) if also else first
