"""The step that lets programs vote: what each does on public examples, kept in behaviour.jsonl beside the verdicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from eval_suite.folder import EvalFolder, key_of
from eval_suite.items import Item, Response
from mmcorl.errors import RunError
from mmcorl.run.progress import task

if TYPE_CHECKING:
    from eval_suite.sandbox.process import Sandbox

FILE = "behaviour.jsonl"


def prepare(folder: EvalFolder, sandbox: Sandbox | None, *, quiet: bool = False) -> None:
    """Observe the programs of the benchmarks whose score is a vote, as the folder's manifest says."""
    asked = {name for name, how in folder.manifest.get("aggregations", {}).items() if how.startswith("maj@")}
    if sandbox is not None:
        observe(folder, sandbox, benchmarks=asked, quiet=quiet)


def observe(folder: EvalFolder, sandbox: Sandbox, *, benchmarks: set[str] | None = None, quiet: bool = False) -> bool:
    """Fill behaviour.jsonl for coding problems, of all benchmarks or of those named; a killed run goes on.

    Returns whether anything was added, which makes a summary stale.

    Raises:
        RunError: the sandbox itself failed on some problems; the rest is kept, and the same command does these again.
    """
    from eval_suite.sandbox.behaviour import acts_of
    from eval_suite.sandbox.process import HarnessError

    done = {key_of(row) for row in folder.rows(FILE)}
    waiting: dict[tuple[str, str], list[Response]] = {}
    for response in folder.responses():
        if (response.benchmark, response.id, response.sample) not in done:
            waiting.setdefault((response.benchmark, response.id), []).append(response)
    items = [item for item in _code(folder.items(), benchmarks) if (item.benchmark, item.id) in waiting]
    if not items:
        return False
    note_sandbox(folder, sandbox)
    failed: list[str] = []
    with task("running examples", len(items), quiet=quiet) as bar:
        for item in items:
            responses = waiting[item.benchmark, item.id]
            try:
                told = acts_of(item, responses, sandbox)
            except HarnessError as error:
                failed.append(str(error))
            else:
                folder.append(FILE, [
                    {"benchmark": item.benchmark, "id": item.id, "sample": response.sample,
                     "outputs": acts.outputs, "tree": acts.tree}
                    for response, acts in zip(responses, told, strict=True)
                ])  # fmt: skip
            bar.advance()
    if failed:
        raise RunError(
            f"the sandbox failed on the examples of {_problems(len(failed))} ({failed[0]}), which says nothing of the "
            "programs: the rest is kept, give the same command again for these"
        )
    return True


def note_sandbox(folder: EvalFolder, sandbox: Sandbox) -> None:
    """Keep what confined the programs of a folder; a folder gone on with on another machine names both."""
    records = folder.facts("sandbox.json") or {"used": []}
    if sandbox.record not in records["used"]:
        records["used"].append(sandbox.record)
        folder.write("sandbox.json", json.dumps(records, indent=1) + "\n")


def _problems(count: int) -> str:
    return "1 problem" if count == 1 else f"{count} problems"


def _code(items: Sequence[Item], benchmarks: set[str] | None) -> list[Item]:
    return [item for item in items if item.kind == "code" and (benchmarks is None or item.benchmark in benchmarks)]
