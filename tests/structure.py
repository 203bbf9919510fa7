"""The structure of the source in numbers: `python tests/structure.py` prints the table.

The import graph is read from the source: imports inside functions count, so do modules named in strings that
`import_module` or a table loads; imports under TYPE_CHECKING do not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

from paths import ROOT

PACKAGES = ("patches", "model_adapters", "mmcorl", "eval_suite")
LOSS_CHAIN = (
    "mmcorl.cli.train",
    "mmcorl.training",
    "mmcorl.cotrain",
    "mmcorl.trainer.worker",
    "mmcorl.trainer.update",
    "mmcorl.algo.loss",
)
"""From `mmcorl train` to the loss. The loop calls agents through `mmcorl.agent.Agent`, which the worker implements."""


def modules(packages: tuple[str, ...] = PACKAGES) -> dict[str, Path]:
    """Return every module of the packages by dotted name."""
    files = {}
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


MODULES = modules()


@cache
def tree(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def _nodes(module: str, typing: bool) -> Iterator[ast.AST]:
    todo: list[ast.AST] = [tree(module)]
    while todo:
        node = todo.pop()
        yield node
        if not typing and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
        else:
            todo += ast.iter_child_nodes(node)


@cache
def imports(module: str, typing: bool = True) -> frozenset[str]:
    """Return the dotted names that a module imports anywhere; `from a import b` is a.b if that is a module.

    Without `typing`, imports under TYPE_CHECKING are left out.
    """
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    names: set[str] = set()
    for node in _nodes(module, typing):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join(parents + ([base] if base else []))
            children = [f"{base}.{alias.name}" for alias in node.names]
            names.update(child if child in MODULES else base for child in children)
    return frozenset(names)


@cache
def strings(module: str) -> frozenset[str]:
    """Return our modules that a module names in strings for `import_module`, or as `module:name`."""
    values = [node.value for node in ast.walk(tree(module)) if isinstance(node, ast.Constant)]
    texts = [value for value in values if isinstance(value, str)]
    loads = "import_module" in MODULES[module].read_text(encoding="utf-8")
    named = {text.partition(":")[0] for text in texts if ":" in text or loads}
    return frozenset(name for name in named if name in MODULES and "." in name)


def graph() -> dict[str, set[str]]:
    """Return what every module imports of ours when it is loaded or run."""
    return {name: ({*imports(name, typing=False), *strings(name)} & MODULES.keys()) - {name} for name in MODULES}


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one node (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                components.append(sorted(stack[at:]))
            del stack[at:]

    for node in edges:
        if node not in index:
            visit(node)
    return components


def _sizes(kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> list[tuple[int, str]]:
    return sorted(
        (
            (node.end_lineno - node.lineno + 1, f"{name}:{node.name}")
            for name in MODULES
            for node in ast.walk(tree(name))
            if isinstance(node, kind)
        ),
        reverse=True,
    )


def classes() -> list[tuple[int, str]]:
    """Return (lines, name) of every class, the largest first."""
    return _sizes(ast.ClassDef)


def functions() -> list[tuple[int, str]]:
    """Return (lines, name) of every function, the longest first."""
    return _sizes((ast.FunctionDef, ast.AsyncFunctionDef))


def lines(folder: str) -> int:
    """Return the number of lines of Python in a folder."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / folder).rglob("*.py"))


def hops() -> int:
    """Return the hops from the command to the loss; an AssertionError names a link of the chain that is not there."""
    for caller, callee in pairwise(LOSS_CHAIN):
        # The loop knows agents by their protocol alone, and the worker implements it.
        if callee == "mmcorl.trainer.worker":
            assert "mmcorl.agent" in imports(caller), f"{caller} does not use mmcorl.agent"
            methods = {node.name for node in ast.walk(tree(callee)) if isinstance(node, ast.FunctionDef)}
            assert {"rollout", "update"} <= methods, f"{callee} is no agent: it has {sorted(methods)}"
        else:
            assert callee in imports(caller), f"{caller} does not import {callee}"
    return len(LOSS_CHAIN) - 1


def mentions(names: tuple[str, ...]) -> list[str]:
    """Return the modules that hold all of these strings as constants or parts of a tuple: places a row touches."""
    return [
        module
        for module in MODULES
        if set(names) <= {node.value for node in ast.walk(tree(module)) if isinstance(node, ast.Constant)}
    ]


PLACES = {
    "reward": ("self_certainty", "match"),
    "rule": ("self_and_peers", "random_peer"),
    "objective": ("reinforce_pp_baseline", "gspo"),
    "benchmark": ("minerva", "scibench"),
}
"""By table: two of its rows. A module that names both repeats the table."""


def table() -> list[tuple[str, object, str]]:
    """Return (what, value, limit)."""
    flat = [path.stem for path in (ROOT / "mmcorl").glob("*.py")]
    long = [name for size, name in functions() if size > 80]
    return [
        ("hops from `mmcorl train` to the loss", hops(), "at most 5"),
        ("modules directly in mmcorl/", len(flat), "at most 8"),
        ("import circles", len(circles(graph())), "0"),
        ("largest class", "{} ({})".format(*classes()[0]), "under 250"),
        ("functions over 80 lines", len(long), "0"),
        ("source lines", sum(lines(package) for package in PACKAGES), "under 34,000"),
        ("test lines", lines("tests"), "under 18,000"),
        *((f"modules that list every {what}", ", ".join(mentions(two)), "the table") for what, two in PLACES.items()),
    ]


if __name__ == "__main__":
    for what, value, limit in table():
        print(f"{what:<40} {value!s:<50} {limit}")
