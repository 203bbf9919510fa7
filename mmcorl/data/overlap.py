"""Overlap of training and validation data: accuracy on shared rows says nothing about generalization."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mmcorl.data.checks import DataCheck


def overlap(train_uids: Collection[str], validation_uids: Collection[str]) -> int:
    """Count the rows of a validation set that are also in the training data.

    Uids are hashes of content: rows match under other ids, in other files and with other answers, but not where a
    question is worded or an image is encoded differently.
    """
    train = set(train_uids)
    return sum(uid in train for uid in validation_uids)


def warnings(checks: Mapping[str, DataCheck]) -> list[str]:
    """Return one sentence per validation set that shares rows with the data called `train`."""
    train = checks["train"]
    sentences = []
    for name, check in checks.items():
        shared = overlap(train.uids, check.uids) if name != "train" else 0
        if shared:
            sentences.append(
                f"{shared} of {len(check.uids)} rows of validation set {name!r} are also in the training data, so "
                "its accuracy is in part that of rows trained on: give it other rows, such as the held-out part of "
                "data.train.hold_out, or for a synthetic set another seed"
            )
    return sentences
