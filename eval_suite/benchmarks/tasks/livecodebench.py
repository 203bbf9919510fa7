"""LiveCodeBench, code generation, release v6: contest problems from LeetCode, AtCoder and Codeforces.

Hub      livecodebench/code_generation_lite: test.jsonl, test2.jsonl .. test6.jsonl (1,055 rows together, 4.5 GB).
Columns  question_title, question_content, platform, question_id, contest_id, contest_date, starter_code, difficulty,
         public_test_cases (JSON), private_test_cases (JSON, or base64 + zlib + pickle of JSON), metadata (JSON).
Licence  CC (the data set's card names no version).
Metric   pass@1 of one sample at temperature 0.2: all public and private tests, 6 s of CPU time each; by
         difficulty and platform.
Traps
- The hub data set is a loading script, which `datasets` 4 refuses: the files are read directly, line by line.
- Private tests are a pickle from the network, whose opcodes are read here instead of run: it may hold one text and
  nothing else. An unpickler that refuses classes still allocates whatever a forged pickle names.
- Tests weigh more than all other data of all benchmarks. An item keeps their digest and where they are; grading
  reads them there again and checks the digest.
- Solutions count on a long list of star imports, which runs before them. numpy is not there: a solution that
  imports it fails here and passes the official harness.
- Functional tests compare with types checked: the official harness also takes 1 for true.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import json
import pickletools
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval_suite.benchmarks.base import Benchmark, Loaded, Row, schema_hash
from eval_suite.reporter import nth_row
from mmcorl.data.row_parsing import RowError
from mmcorl.errors import UserError
from mmcorl.grading.code_task import CodeTask, ExtractedProgram
from mmcorl.grading.items import Item, Response
from mmcorl.sandbox.extract import extract_code
from mmcorl.sandbox.process import Sandbox
from mmcorl.sandbox.run_tests import (
    CallCase,
    CodeResult,
    Observation,
    Program,
    StdinCase,
    observe_calls,
    observe_programs,
    run_calls,
    run_programs,
)

SECONDS = 6.0
TEMPERATURE = 0.2
"""Sampling temperature of the official runs, one sample per problem."""

# fmt: off
_MODULES = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics",
    "itertools", "functools", "operator", "io", "sys", "json",
)
# fmt: on
PRELUDE = "\n".join(
    [
        *(f"from {name} import *" for name in (*_MODULES, "builtins", "typing")),
        *(f"import {name}" for name in _MODULES),
        "sys.setrecursionlimit(50000)",
    ]
)
"""The names the official harness gives every solution."""

_SYSTEM = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will generate a "
    "correct Python program that matches the specification and passes all tests."
)
_WITH_STARTER = (
    "You will use the following starter code to write the solution to the problem and enclose your code within "
    "delimiters."
)
_WITHOUT_STARTER = (
    "Read the inputs from stdin solve the problem and write the answer to stdout (do not directly test on the sample "
    "inputs). Enclose your code within delimiters as follows. Ensure that when the python program runs, it reads the "
    "inputs, runs the algorithm and writes output to STDOUT."
)
_MAX_TESTS = 1 << 30
_ENTRY = "_entry_point_of_the_tests"


@dataclass(frozen=True)
class Tests:
    """The tests of one problem."""

    __test__ = False

    function: str | None
    """The function that functional tests call; None when programs read stdin."""
    public: tuple[tuple[str, str], ...]
    """(input, output)."""
    private: tuple[tuple[str, str], ...]


_FRAME = frozenset({"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "STOP"})
_TEXT = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"})


def _pickled_text(packed: bytes) -> str:
    """Return the one text a pickle holds, read from its opcodes; raises ValueError for any other pickle."""
    texts: list[str] = []
    for opcode, argument, _ in pickletools.genops(packed):
        if opcode.name in _TEXT:
            texts.append(str(argument))
        elif opcode.name not in _FRAME:
            raise ValueError(f"the pickle holds {opcode.name}, and it may hold only text")
    if len(texts) != 1:
        raise ValueError(f"the pickle holds {len(texts)} texts, not one")
    return texts[0]


def private_tests(stored: str) -> Any:
    """Return the private tests of one row, as JSON data; raises RowError for what the data set does not publish."""
    try:
        return json.loads(stored)
    except RecursionError as error:
        raise RowError("bad_tests", "column 'private_test_cases' is nested too deeply") from error
    except ValueError:
        pass  # the packed form, below
    unpacker = zlib.decompressobj()
    try:
        packed = unpacker.decompress(base64.b64decode(stored, validate=True), _MAX_TESTS)
        if unpacker.unconsumed_tail:
            raise ValueError(f"it holds more than {_MAX_TESTS >> 20} MB")
        text = _pickled_text(packed)
    except (ValueError, zlib.error) as error:
        raise RowError("bad_tests", f"column 'private_test_cases' cannot be unpacked: {error}") from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RowError("bad_tests", f"column 'private_test_cases' holds no JSON: {error}") from error


def _cases(stored: Any, column: str) -> tuple[tuple[str, str], ...]:
    try:
        return tuple((str(case["input"]), str(case["output"])) for case in stored)
    except (KeyError, TypeError) as error:
        raise RowError("bad_tests", f"column {column!r} is no list of tests with input and output") from error


def tests_of(row: Row) -> Tests:
    """Return the tests of one row; raises RowError."""
    try:
        public, metadata = json.loads(row.text("public_test_cases")), json.loads(row.text("metadata"))
    except (ValueError, RecursionError) as error:
        raise RowError("bad_tests", f"columns 'public_test_cases' and 'metadata' must be JSON: {error}") from error
    if not isinstance(metadata, dict):
        raise RowError("bad_tests", "column 'metadata' is no JSON object")
    return Tests(
        metadata.get("func_name"),
        _cases(public, "public_test_cases"),
        _cases(private_tests(row.text("private_test_cases")), "private_test_cases"),
    )


def digest_of(row: Row) -> str:
    """Return the digest of a row's tests as they are stored."""
    parts = [row.text(name) for name in ("public_test_cases", "private_test_cases", "metadata")]
    return hashlib.sha256("\x1f".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def question_of(row: Row) -> str:
    """Return the official prompt: its system sentence, the problem, the format request."""
    starter = row.maybe_text("starter_code")
    form, code = (_WITH_STARTER, starter) if starter else (_WITHOUT_STARTER, "# YOUR CODE HERE")
    return (
        f"{_SYSTEM}\n\n### Question:\n{row.text('question_content')}\n\n### Format: {form}\n```python\n{code}\n```\n\n"
        "### Answer: (use the provided format with backticks)\n\n"
    )


def read(row: Row) -> Item:
    """Return one row as an item; `_file` and `_offset` say where it is. Raises RowError."""
    meta = {
        "difficulty": row.text("difficulty"),
        "platform": row.text("platform"),
        "contest_date": row.text("contest_date"),
        "tests_file": row.text("_file"),
        "tests_offset": row.integer("_offset"),
    }
    return Item("livecodebench", row.text("question_id"), question_of(row), digest_of(row), kind="code", meta=meta)


def stored_tests(item: Item) -> Tests:
    """Return the tests of an item, read again from where they were; refuses when they are gone or others."""
    path, again = Path(item.meta["tests_file"]), "load livecodebench again from where its files are now"
    try:
        with path.open("rb") as file:
            file.seek(item.meta["tests_offset"])
            values = json.loads(file.readline())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"the tests of livecodebench {item.id} cannot be read from {path} ({error}): {again}"
        ) from error
    row = Row(0, values if isinstance(values, dict) else {}, lambda column: ())
    try:
        if digest_of(row) == item.gold:
            return tests_of(row)
    except RowError as error:
        raise UserError(f"the tests of livecodebench {item.id} in {path} are unreadable ({error}): {again}") from error
    raise UserError(f"the tests of livecodebench {item.id} in {path} are not those the item was made with: {again}")


def program(item: Item, response: Response) -> ExtractedProgram:
    """Return the program a response gives."""
    answer = extract_code(response.text, response.finish_reason, thinking=response.thinking)
    return ExtractedProgram(answer, None if answer.code is None else Program(answer.code, prelude=PRELUDE))


def test(item: Item, solution: Program, sandbox: Sandbox) -> CodeResult:
    """Run the public, then the private tests, up to the first that fails."""
    tests = stored_tests(item)
    cases = [*tests.public, *tests.private]
    if tests.function is None:
        return run_programs(sandbox, solution, [StdinCase(*case) for case in cases], SECONDS)
    calls = [CallCase(_values(item, *given.split("\n")), _values(item, wanted)[0]) for given, wanted in cases]
    return run_calls(sandbox, _with_entry(solution, tests.function), _ENTRY, calls, SECONDS)


def _values(item: Item, *lines: str) -> tuple[Any, ...]:
    try:
        return tuple(map(json.loads, lines))
    except (ValueError, RecursionError) as error:
        raise UserError(f"a test of livecodebench {item.id} is no JSON ({error}): replace the copy") from error


def _with_entry(solution: Program, function: str) -> Program:
    if not function.isidentifier():
        raise UserError(f"the data set names {function!r} as a function to call: replace the copy")
    owner = "Solution()." if re.search(r"\bclass Solution\b", solution.source) else ""
    return Program(f"{solution.source}\n\n{_ENTRY} = {owner}{function}\n", solution.prelude)


def observe(item: Item, solution: Program, sandbox: Sandbox) -> Observation:
    """Return what the solution answers on the public inputs."""
    tests = stored_tests(item)
    inputs = [given for given, _ in tests.public]
    if tests.function is None:
        return observe_programs(sandbox, solution, inputs, SECONDS)
    calls = [f"{_ENTRY}({', '.join(map(repr, _values(item, *given.split(chr(10)))))})" for given in inputs]
    return observe_calls(sandbox, _with_entry(solution, tests.function), calls, SECONDS)


TASK = CodeTask(program, test, observe)


@dataclass(frozen=True)
class LiveCodeBench(Benchmark):
    """Reads test*.jsonl itself, one line at a time, because the whole is larger than memory."""

    def load(self, source: str | Path | None = None, limit: int | None = None) -> Loaded:
        """Read the items from the hub's files, or from a folder of test*.jsonl, a glob or one such file."""
        commit = None
        if source is None:
            folder, commit = self._from_hub()
            paths = _files(folder)
        else:
            paths = _files(Path(source).expanduser())
        where = str(source or self.hub_id)
        if not paths:
            raise UserError(
                f"{where!r} holds no test*.jsonl file; download those of {self.hub_id} and give their folder"
            )
        items: list[Item] = []
        columns: set[str] = set()
        total = 0
        for row in _rows(paths):
            total += 1
            if limit is not None and len(items) == limit:
                continue
            columns.update(name for name in row.values if not name.startswith("_"))
            items.append(self._item(row, where))
        notes = self.check_count(total, where, commit, "leave the files of releases after v6 out")
        self._check_ids(items, where)
        if len(items) < total:
            notes.append(f"limited: the first {len(items)} of {total} rows")
        return Loaded(tuple(items), commit, schema_hash(columns), total, tuple(notes))

    def _from_hub(self) -> tuple[Path, str]:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        names = ["test.jsonl", *(f"test{number}.jsonl" for number in range(2, 7))]
        try:
            folder = snapshot_download(self.hub_id, repo_type="dataset", allow_patterns=names)
        except (OSError, ValueError, HfHubHTTPError, LocalEntryNotFoundError) as error:
            cause = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")[:200]
            raise UserError(
                f"{self.name} cannot be loaded from the hub as {self.hub_id} ({cause}); check the network, or give "
                "the folder of its test*.jsonl files"
            ) from error
        return Path(folder), Path(folder).name


def _files(path: Path) -> list[Path]:
    """Return the files in the order of the releases: test.jsonl, test2.jsonl, ..., test6.jsonl."""
    if path.is_dir():
        files = list(path.glob("test*.jsonl"))
    elif path.is_file():
        files = [path]
    else:
        files = [Path(name) for name in glob.glob(str(path))]

    def number(file: Path) -> tuple[int, str]:
        digits = re.search(r"(\d+)$", file.stem)
        return (int(digits.group(1)) if digits else 1, file.name)

    return sorted(files, key=number)


def _rows(paths: list[Path]) -> Iterator[Row]:
    """Yield rows of the lines that are not blank, each with its file and place."""
    number = 0
    for path in paths:
        offset = 0
        try:
            with path.open("rb") as file:
                for line in file:
                    if line.strip():
                        where = {"_file": str(path.resolve()), "_offset": offset}
                        yield Row(number, _object(line, number, path, offset) | where, lambda column: ())
                        number += 1
                    offset += len(line)
        except OSError as error:
            raise UserError(f"{path} of livecodebench cannot be read ({error.strerror}): replace it") from error


def _object(line: bytes, number: int, path: Path, offset: int) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{nth_row(number, path)}, at byte {offset}, is no JSON ({error}): replace it") from error
    if not isinstance(values, dict):
        raise UserError(f"{nth_row(number, path)}, at byte {offset}, is no JSON object: replace it")
    return values


LIVECODEBENCH = LiveCodeBench(
    name="livecodebench",
    title="LCB",
    group="code",
    place=16,
    suites=("mean of 7",),
    code=TASK,
    hub_id="livecodebench/code_generation_lite",
    split="test",
    rows=1055,
    columns=(
        *("question_title", "question_content", "platform", "question_id", "contest_id", "contest_date"),
        *("starter_code", "difficulty", "public_test_cases", "private_test_cases", "metadata"),
    ),
    licence="CC",
    read=read,
    fields=("difficulty", "platform"),
    prompt_style="plain",
    temperature=TEMPERATURE,
)
