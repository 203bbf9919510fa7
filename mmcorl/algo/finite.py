"""Numbers that are not finite are an error with a place, never filled in."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcorl.errors import RunError


class NotFiniteError(RunError):
    """A log-probability or reward is NaN or infinite: something upstream is broken."""


def require_finite(values: Tensor, what: str) -> None:
    """Raise NotFiniteError with the position of the first value that is NaN or infinite; `what` names a value."""
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        where = tuple(int(i) for i in bad.nonzero()[0])
        position = where[0] if len(where) == 1 else where
        raise NotFiniteError(
            f"{what} is {values[where].item()} at position {position} of shape {tuple(values.shape)} "
            f"({int(bad.sum())} of {values.numel()} are not finite)"
        )
