"""Rows that a validation set shares with the training data: accuracy on them says nothing about other rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mmcorl.data.checks import DataCheck


def overlap(train_uids: Collection[str], validation_uids: Collection[str]) -> int:
    """How many rows of a validation set also stand in the training data.

    Uids are hashes of content, so rows are found again under other ids and in other files, and whatever their
    answers; not where a question is worded or an image is encoded in another way.
    """
    train = set(train_uids)
    return sum(uid in train for uid in validation_uids)


def warnings(checks: Mapping[str, DataCheck]) -> list[str]:
    """One sentence per validation set that shares rows with the data called `train`."""
    train = checks["train"]
    sentences = []
    for name, check in checks.items():
        shared = overlap(train.uids, check.uids) if name != "train" else 0
        if shared:
            sentences.append(
                f"{shared} of {len(check.uids)} rows of validation set {name!r} also stand in the training data, so "
                "its accuracy is in part that of rows trained on: give it other rows, such as the held-out part of "
                "data.train.hold_out, or for a synthetic set another seed"
            )
    return sentences
