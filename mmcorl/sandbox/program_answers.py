"""Answers of programs in completions, by which they vote in training."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from mmcorl.answers.outputs import outputs_answer
from mmcorl.errors import RunError
from mmcorl.sandbox.extract import extract_code
from mmcorl.sandbox.process import HarnessError, Sandbox
from mmcorl.sandbox.run_tests import Program, observe_calls
from mmcorl.types import Completion

SECONDS = 5.0
"""CPU time of a program for loading and all of its inputs; by the clock, three times as much."""
_PRELUDE = "from typing import *"
_AT_ONCE = min(8, os.cpu_count() or 1)


def program_answers(sandbox: Sandbox, calls: Sequence[str], completions: Sequence[Completion]) -> list[str | None]:
    """Return what the program of each completion answers to the calls of its problem, see `outputs_answer`.

    None, which has no vote, where there is no program, where it fails on every input or runs out of time or memory on
    one, and where it returns nothing but objects of its own, which cannot be compared. An input on which it raises an
    error is answered by the name of the error. Equal programs are run once. Raises RunError where the sandbox fails.
    """

    def answer(source: str) -> str | None:
        seen = observe_calls(sandbox, Program(source, _PRELUDE), calls, SECONDS)
        has_output = any(not output.startswith(("!", "<")) for output in seen.outputs)
        return outputs_answer(seen.outputs) if seen.ran and has_output and not seen.stopped else None

    sources = [extract_code(each.text, each.finish_reason, thinking=each.thinking).code for each in completions]
    distinct = list(dict.fromkeys(source for source in sources if source is not None))
    try:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="programs") as pool:
            answers = dict(zip(distinct, pool.map(answer, distinct), strict=True))
    except HarnessError as problem:
        raise RunError(
            f"the sandbox in which programs run failed three times, which says nothing of them ({problem}): see that "
            "memory and processes are left on this machine, and start the same command again"
        ) from problem
    return [None if source is None else answers[source] for source in sources]
