"""Benchmarks by name: `BENCHMARKS["mathvision"].load(...)` gives items, `.sub_scores(...)` the official tables.

One file per benchmark or family of benchmarks, its card on top; the folder is scanned, so a new file is all that a new
benchmark takes. A benchmark from outside is named by `package.module:NAME`, in the working folder or on the path.

The text suites are files like the others instead of lm-evaluation-harness tasks: one path for prompts, one grader with
one policy, answers stored and resumed row by row, options shuffled by the question instead of a global generator, and
no second environment (its `minerva_math` pins another antlr than training needs, its code tasks download at import).
Its five-shot GSM8K number is not comparable with the zero-shot one made here.
"""

from __future__ import annotations

import difflib
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module

from eval_suite.benchmarks.base import RULES_ALONE, Benchmark, Loaded, SubScores
from mmcorl.errors import UserError
from mmcorl.registry import load_object
from mmcorl.synthetic.rows import SOURCES
from mmcorl.system.user_code import importable


class Benchmarks(Mapping[str, Benchmark]):
    """Built-in benchmarks in the order of the paper's tables; the folder is scanned at the first use."""

    def __init__(self) -> None:
        self._built_in: dict[str, Benchmark] = {}
        self._outside: dict[str, Benchmark] = {}
        self.imported: dict[str, str] = {}
        """Import paths of the benchmarks from outside, by name."""

    def find(self, name: str) -> Benchmark:
        """Return a built-in benchmark by name, or a user's by `package.module:NAME` or `file.py:NAME`.

        Raises:
            UserError: an unknown name, an import that fails, or an object that is no benchmark.
        """
        name = importable(name) if ".py:" in name else name
        if ":" in name:
            benchmark = load_object(name, "benchmark")
            if not isinstance(benchmark, Benchmark):
                raise UserError(
                    f"benchmark {name!r} is a {type(benchmark).__name__}, not an `eval_suite.benchmarks.base.Benchmark`"
                )
            if benchmark.name in self._scanned():
                raise UserError(f"benchmark {name!r} is called {benchmark.name!r} like a built-in one: rename it")
            self._outside[benchmark.name], self.imported[benchmark.name] = benchmark, name
            return benchmark
        if name in self:
            return (self._scanned() | self._outside)[name]
        near = difflib.get_close_matches(name, self, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(
            f"benchmark {name!r} is unknown: {hint}the benchmarks are {', '.join(self._scanned())}, or your own as "
            "package.module:NAME or file.py:NAME"
        )

    def forget(self, name: str) -> None:
        """Remove a benchmark from outside, such as one whose file has changed."""
        self._outside.pop(name, None)
        self.imported.pop(name, None)

    def judged(self, name: str) -> bool:
        """Return whether rules alone are too low a score of a benchmark; False for one's own rows."""
        return name in self and self[name].judged

    def _scanned(self) -> dict[str, Benchmark]:
        if not self._built_in:
            modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
            scanned = [value for module in modules for value in vars(module).values() if isinstance(value, Benchmark)]
            self._built_in = {row.name: row for row in sorted(scanned, key=lambda row: row.place)}
        return self._built_in

    def __getitem__(self, name: str) -> Benchmark:
        return self.find(name)

    def __contains__(self, name: object) -> bool:
        return name in self._scanned() or name in self._outside

    def __iter__(self) -> Iterator[str]:
        return iter(self._scanned())

    def __len__(self) -> int:
        return len(self._scanned())


BENCHMARKS = Benchmarks()


OWN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Names of one's own rows."""
FILES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".yaml", ".yml")
"""Ends of names that are files rather than benchmarks."""
TOO_NEAR = 0.8
"""A new name this similar to a benchmark's is taken for a mistake in writing it."""


def parse_benchmarks(texts: Sequence[str] | str, *, own_rows: bool = False) -> dict[str, str | None]:
    """Split `NAME` or `NAME=PATH` into names and local copies; None stands for the hub.

    `package.module:NAME` becomes the name of the benchmark it imports. With `own_rows`, a NAME=PATH that is no
    benchmark's stays: it names one's own rows; `synthetic:KIND` and `natural:KIND` are rows that need no file.
    """
    sources: dict[str, str | None] = {}
    for text in [texts] if isinstance(texts, str) else texts:
        name, equals, path = text.partition("=")
        if own_rows and name.startswith(("synthetic:", "natural:")):
            if name not in SOURCES:
                close = difflib.get_close_matches(name, SOURCES, 1)
                hint = f"did you mean {close[0]!r}? " if close else ""
                raise UserError(f"there are no problems {name!r}: {hint}there are {', '.join(SOURCES)}")
            name, equals, path = name.replace(":", "_"), "=", name
        elif own_rows and not equals and name.endswith(FILES):
            raise UserError(f"{name!r} is no benchmark but looks like a file: name your rows, mine={name}")
        near = difflib.get_close_matches(name, BENCHMARKS, 1, TOO_NEAR)
        if not (own_rows and equals and OWN_NAME.fullmatch(name)) or near:
            name = BENCHMARKS.find(name).name  # refuses an unknown name
        if name in sources:
            raise UserError(f"{name} is named twice: evaluate one copy of it, or two into two folders")
        if equals and not path:
            raise UserError(f"{text!r} names no path: write {name}=PATH, or {name} alone for the hub")
        sources[name] = path if equals else None
    if not sources:
        raise UserError("no benchmark is named: give at least one, such as math500")
    return sources


def by_problems(names: Iterable[str]) -> dict[str, list[str]]:
    """Group benchmarks by the one whose problems they ask: itself, and other forms of it."""
    forms: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        forms.setdefault((name in BENCHMARKS and BENCHMARKS[name].form_of) or name, []).append(name)
    return forms


def suites() -> dict[str, tuple[str, ...]]:
    """Return the sets of benchmarks whose plain mean the paper prints: members by name of the set."""
    members: dict[str, list[str]] = {}
    for benchmark in BENCHMARKS.values():
        for suite in benchmark.suites:
            members.setdefault(suite, []).append(benchmark.name)
    return {suite: tuple(names) for suite, names in members.items()}


def unjudged(names: Iterable[str]) -> list[str]:
    """Return a caveat for each benchmark whose answers rules alone do not decide."""
    return [f"{name}: {RULES_ALONE}; name one with `judge`" for name in names if BENCHMARKS.judged(name)]


def listing() -> str:
    """Return the names of the built-in benchmarks by kind, for `--help`."""
    groups: dict[str, list[str]] = {}
    for benchmark in BENCHMARKS.values():
        groups.setdefault(benchmark.group, []).append(benchmark.name)
    lines = ["benchmarks:", *(f"  {group:<8}  {' '.join(names)}" for group, names in groups.items())]
    lines = [f"{line} (with `run_code=True`)" if line.startswith("  code") else line for line in lines]
    lines.append("  your own  file.py:NAME or package.module:NAME, see docs/extending.md")
    lines.append("  your rows NAME=FILE, of any other name: anything that `mmcorl train` reads, see docs/evaluation.md")
    for group in ("synthetic", "natural"):
        kinds = ", ".join(kind for source, kind in SOURCES.items() if source.startswith(group))
        lines.append(f"  demo      {group}:KIND for {kinds}; no download")
    return "\n".join([*lines, ""])


__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "Loaded",
    "SubScores",
    "by_problems",
    "listing",
    "parse_benchmarks",
    "suites",
    "unjudged",
]
