"""The training prompts of a run and their known answers, read again from the data in its config."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from mmcorl.config import load_kept
from mmcorl.data.row_parsing import BadRow
from mmcorl.data.sources import load_prompts
from mmcorl.errors import UserError
from mmcorl.types import Prompt


def training_prompts(run_dir: Path, uids: Collection[str]) -> dict[str, Prompt]:
    """Return the training prompts of a run by uid, as many of `uids` as its data still have.

    Rows that cannot be read were not trained on and are skipped.

    Raises:
        UserError: no config, data that cannot be opened, or data that have none of these prompts any more.
    """
    config = run_dir / "config.yaml"
    if not config.is_file():
        raise UserError(f"{str(run_dir)!r} has no config.yaml: give the folder of a run of `mmcorl train`")
    source = load_prompts(load_kept(run_dir).data.train)
    prompts: dict[str, Prompt] = {}
    for row in range(len(source)):
        try:
            prompt = source[row]
        except BadRow:
            continue
        if prompt.uid in uids:
            prompts[prompt.uid] = prompt
            if len(prompts) == len(uids):
                break
    if uids and not prompts:
        raise UserError(
            f"the training data of {str(run_dir)!r} ({source.name}) have none of the prompts in its votes: restore the "
            "data it was trained on"
        )
    return prompts
