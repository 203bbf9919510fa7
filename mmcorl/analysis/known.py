"""The prompts of a run and their known answers, read again from the data its config names."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from mmcorl.config import load
from mmcorl.data.row_parsing import BadRow
from mmcorl.data.sources import load_prompts
from mmcorl.errors import UserError
from mmcorl.types import Prompt


def training_prompts(run_dir: Path, uids: Collection[str]) -> dict[str, Prompt]:
    """The training prompts of a run by uid, as many of `uids` as its data still hold.

    Rows that cannot be read were not trained on and are passed over.

    Raises:
        UserError: no config, data that cannot be opened, or data that hold none of these prompts any more.
    """
    config = run_dir / "config.yaml"
    if not config.is_file():
        raise UserError(f"{str(run_dir)!r} holds no config.yaml: give the folder of a run of `mmcorl train`")
    source = load_prompts(load(config).data.train)
    found: dict[str, Prompt] = {}
    for row in range(len(source)):
        try:
            prompt = source[row]
        except BadRow:
            continue
        if prompt.uid in uids:
            found[prompt.uid] = prompt
            if len(found) == len(uids):
                break
    if uids and not found:
        raise UserError(
            f"the training data of {str(run_dir)!r} ({source.name}) hold none of the prompts in its votes: restore the "
            "data it was trained on"
        )
    return found
