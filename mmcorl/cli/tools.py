"""Commands on models and data: families, check-adapter, zoo."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

from mmcorl.cli.arguments import Arguments, Flag, Output, command
from mmcorl.registry import make_importable


@command("families", "the supported model families and what each needs")
def families(output: Output) -> int:
    from model_adapters.registry import families as rows

    records = [asdict(row) for row in rows()]
    if output.as_json:
        print(json.dumps(records))
        return 0
    for record in records:
        print(record.pop("family"))
        for key, value in record.items():
            text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            text = ("yes" if value else "no") if isinstance(value, bool) else text
            if text:
                print(f"  {key.replace('_', ' ') + ':':<24}{text}")
    return 0


class AdapterArguments(Arguments):
    model: Annotated[str, Flag(positional=True, metavar="MODEL")]
    """checkpoint folder or hub id"""
    adapter: Annotated[str | None, Flag(metavar="PKG.MODULE:CLASS")] = None
    """an adapter from outside"""


@command("check-adapter", "run the adapter contract on a checkpoint")
def check_adapter(checkpoint: AdapterArguments, output: Output) -> int:
    """Print the result of each check; exit status 1 for a failure."""
    from transformers.utils import logging as transformers_logging

    from mmcorl.tools.zoo import resolve
    from model_adapters.contract import check_adapter as contract

    make_importable(checkpoint.adapter or "")
    transformers_logging.disable_progress_bar()
    checks = contract(resolve(checkpoint.model), checkpoint.adapter)
    if output.as_json:
        print(json.dumps([asdict(check) for check in checks]))
    else:
        for check in checks:
            mark = "skip" if check.skipped_reason else "ok  " if check.passed else "FAIL"
            print(f"{mark}  {check.name}: {check.skipped_reason or check.detail}")
    return 0 if all(check.passed or check.skipped_reason for check in checks) else 1


class ZooArguments(Arguments):
    names: Annotated[tuple[str, ...], Flag(positional=True, metavar="NAME[@SEED]")] = ()
    """build these and print their folders"""


@command("zoo", "small checkpoints for demonstrations; list or build them")
def zoo(models: ZooArguments) -> int:
    from mmcorl.tools import smollm2
    from mmcorl.tools import zoo as tool
    from mmcorl.tools.habits import Habits

    if not models.names:
        for name, entry in tool.ZOO.items():
            print(f"zoo:{name:<22} {entry.describe()}")
        print(f"zoo:{smollm2.NAME:<22} SmolLM2-135M-Instruct, pretrained, from PyPI (93 MB); see configs/smollm2.yaml")
        print(
            f"\nBuilt or fetched on first use and kept in {tool.cache_folder()} ($MMCORL_CACHE). The built ones know\n"
            "short prompts only: prompt.style=plain sampling.max_new_tokens=14 training.dtype=fp32, as in\n"
            "configs/quickstart.yaml.\n\n"
            "Instead, with wrong habits that overlap with those of other agents as much as asked:\n"
            f"zoo:NAME,{Habits()}\n"
            "(kappa of every pair, the share of the task that is wrong, how often it is right there and elsewhere)"
        )
    for name in models.names:
        print(tool.resolve(f"zoo:{name.removeprefix('zoo:')}"))
    return 0
