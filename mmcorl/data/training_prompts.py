"""The batches of a run: the usable training rows in the order of `Batches`, read one step ahead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from mmcorl.data.batches import Batches
from mmcorl.types import Prompt, twins


class TrainingPrompts:
    """Batches of the kept training rows, a function of the step alone. Implements `mmcorl.cotrain.Prompts`.

    Args:
        source: rows by number.
        kept: numbers of the usable rows.
        batch_size: prompts per step.
        seed: of the order.
        pair: view with the other wording, where each row comes in both (`supervision.pair`).
    """

    def __init__(
        self, source: Sequence[Prompt], kept: Sequence[int], batch_size: int, seed: int, pair: str | None = None
    ):
        self.source, self.kept, self.pair = source, kept, pair
        self.batches = Batches(len(kept), batch_size, seed)
        self.last: float = math.inf
        """No step beyond it is read ahead."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reads-ahead")
        self._reading: dict[int, Future[list[Prompt]]] = {}

    def batch(self, step: int) -> list[Prompt]:
        """Return the B prompts of a step, each followed by its twin where wordings are paired."""
        wanted = [step, step + 1] if step < self.last else [step]
        self._reading = {
            each: self._reading.get(each) or self._thread.submit(self._read, self.batches.rows(each)) for each in wanted
        }
        return self._reading[step].result()

    def ahead(self, step: int) -> Sequence[Prompt]:
        """Return the prompts of the step after the present one; none behind the last, or where `batch` will raise."""
        reading = self._reading.get(step)
        return () if reading is None or reading.exception() else reading.result()

    def sample(self, count: int) -> list[Prompt]:
        """Return about `count` rows, evenly spread over the data."""
        return [self.source[row] for row in self.kept[:: max(1, len(self.kept) // count)][:count]]

    def _read(self, numbers: Sequence[int]) -> list[Prompt]:
        rows = [self.source[self.kept[number]] for number in numbers]
        return [wording for row in rows for wording in (twins(row, self.pair) if self.pair else (row,))]
