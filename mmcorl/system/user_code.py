"""Whose code is imported: modules that this command line, or a config that it names, names itself, and no others.

A module of a user's is a file (or a package) beside the config, in the working folder or in RUN/user. It is imported
from its source, with the modules beside it that it imports. Its folder does not join `sys.path`: nothing else that lies
there can be imported, nor take the place of a package.

What a file from elsewhere names (mmcorl.json beside weights, config.yaml of their run, an evaluation) is a wish, which
`require_known` grants for files with a SHA-256 that a command here has named before.
"""

from __future__ import annotations

import ast
import filecmp
import hashlib
import importlib.util
import os
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, Literal

from mmcorl.errors import UserError
from mmcorl.system.cache import cache_folder

KEPT = "user"
"""Folder in that of a run for the files of users that it began with."""
INHERITED = "MMCORL_USER_PATH"
"""Environment variable by which processes started from here find the modules of users."""
OURS = ("mmcorl", "eval_suite", "model_adapters", "patches")
SPEC = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_PATHS = map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
_LIBRARIES = {Path(path).resolve() for path in (*_PATHS, *site.getsitepackages(), site.getusersitepackages())}
"""Where Python's own modules and those of installed packages lie."""

_folders: list[Path] = []
"""Where files of users may lie: the folders of the configs that were loaded, the latest last."""
_modules = {Path(place).stem: Path(place) for place in os.environ.get(INHERITED, "").split(os.pathsep) if place}
"""Modules of users that may be imported, each a file or the folder of a package, by name."""
_named: set[str] = set()
"""SHA-256 of the files that this process was told of."""
_tell: list[Callable[[str], None]] = []


class NotNamedError(UserError):
    """Code that only a file from elsewhere names."""


class _Source(SourceFileLoader):
    """Compiles the source that was looked at; a file in __pycache__ may be of another."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _Finder:
    """Finds the modules of users that may be imported, and no others."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        top, *parts = name.split(".")
        if (place := _modules.get(top)) is None or not place.exists():
            return None
        place = place.joinpath(*parts)
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if place.is_dir() and not file.is_file():
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(place)]
            return spec
        if not file.is_file():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return importlib.util.spec_from_file_location(name, file, loader=_Source(name, str(file)))


sys.meta_path.insert(0, _Finder)


def look_in(folder: Path) -> None:
    """Let users' modules be named that lie in `folder`."""
    if (folder := folder.resolve()) in _folders:
        _folders.remove(folder)
    _folders.append(folder)


@contextmanager
def told(tell: Callable[[str], None]) -> Iterator[None]:
    """Say of each file of a user's, before it is imported, where it is and what its SHA-256 is."""
    _tell.append(tell)
    try:
        yield
    finally:
        _tell.pop()


def make_importable(spec: str) -> None:
    """Let the module of a spec be imported that a user named, here and in processes started from here; remember its
    hash. Raises UserError where Python finds a module that hides another of its name beside the config loaded last."""
    top = spec.partition(":")[0].partition(".")[0]
    if not top or top in OURS:
        return
    origin, place = _found(top)
    beside = _beside(top, _folders[-1]) if _folders else None
    file = beside and (beside / "__init__.py" if beside.is_dir() else beside)
    if origin is not None and file and file.is_file():
        _require_same(spec, top, origin, file)
    if place is not None:
        _remember(_files(spec, place))
        if origin is None:
            _admit(place)


def importable(spec: str) -> str:
    """Return the import path of `package.module:name` or `folder/file.py:name`, having made sure that Python finds it.

    Raises UserError where no file is there, or Python knows another module by its name.
    """
    path, _, name = spec.rpartition(":")
    if not path.endswith(".py"):
        make_importable(spec)
        return spec
    if (file := _file_at(path)) is None:
        raise UserError(f"{spec!r}: there is no file {path!r} beside the config or in the working folder: correct it")
    module = f"{file.stem}:{name}"
    if not SPEC.fullmatch(module):
        raise UserError(f"{spec!r} names nothing in a Python module: write file.py:name, of letters, digits and _")
    if file.parent not in _folders:
        _folders.insert(0, file.parent)  # the last one is that of the config
    make_importable(module)
    _require_same(spec, file.stem, _origin(file.stem) or "", file)
    return module


def require_known(
    spec: str, what: Literal["adapter", "benchmark", "answer relation"], where: Path, run: Path | None = None
) -> None:
    """Let the module of a spec be imported that only a file in `where` names, from RUN/user of its run if it is there.

    This is asked of all that was neither named on this command line nor in a config on it. Without a question: files
    that are known, as a command here named them before, with all that they import from beside them; and modules of
    installed packages, where what they hold has a type that is checked. A relation may be any function of theirs.

    Raises NotNamedError with the files that would run, their SHA-256 and the option that names them.
    """
    module, _, name = spec.rpartition(":")
    top = Path(module).stem if module.endswith(".py") else module.partition(".")[0]
    place = _file_at(module) if module.endswith(".py") else None
    typed = what != "answer relation"
    if top in sys.stdlib_module_names or not SPEC.fullmatch(f"{top}:{name}" if place else spec):
        raise NotNamedError(f"{str(where)!r} names the {what} {spec[:200]!r}, which is no code of a user's: restore it")
    installed = place is None and (top in OURS or _installed(top))
    if place is None and run is not None and not installed:
        place = _beside(top, run / KEPT)
    if place is None:
        _, place = _found(top)
    if place is None or (installed and typed and not module.endswith("__main__")):
        return  # Of what is nowhere the import says so.
    known = _known()
    unknown = [f"{file} (SHA-256 {sha})" for file in _files(spec, place) if (sha := _sha256(file)) not in known]
    if unknown:
        way = f"--adapter {place}:{name}" if what == "adapter" and place.is_file() else f"--trust {place}"
        files = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more files" if len(unknown) > 3 else "")
        raise NotNamedError(
            f"{str(where)!r} names the {what} {spec!r}, code that this command line does not name: {files} "
            f"would run; read it, and give {way} to run it"
        )
    if not installed:
        _admit(place)


def trust(path: Path) -> None:
    """Remember the files of a module that the command line names, with what they import from beside them."""
    place = path.expanduser().resolve()
    if not (place.is_dir() or (place.is_file() and place.suffix == ".py")):
        raise UserError(f"--trust {path}: there is no such file.py or folder of a package: correct it")
    _remember(_files(place.stem, place))


def user_files(specs: Iterable[str]) -> dict[str, Path]:
    """Return the files of users behind import paths, by their place in the folder they are imported from.

    These are the modules beside a config or in the working folder and what they import from there; no installed ones.
    """
    files: dict[str, Path] = {}
    homes = [*_folders, Path.cwd().resolve()]
    for spec in specs:
        top = spec.partition(":")[0].partition(".")[0]
        if ":" not in spec or top in OURS or _installed(top):
            continue
        _, place = _found(top)
        if place is not None and place.parent.resolve() in homes:
            for one in _with_imports(place):
                files |= {file.relative_to(one.parent).as_posix(): file for file in _sources(one)}
    return files


# -- files --------------------------------------------------------------------------------------------------------


def _admit(place: Path) -> None:
    _modules.update({one.stem: one for one in _with_imports(place)})
    os.environ[INHERITED] = os.pathsep.join(map(str, _modules.values()))


def _with_imports(place: Path) -> list[Path]:
    """A module of a user's and those beside it that it imports, each a file or the folder of a package."""
    found, todo = list[Path](), [place]
    while todo:
        place = todo.pop()
        if place in found:
            continue
        found.append(place)
        tops = set[str]()
        for file in _sources(place):
            with suppress(SyntaxError, ValueError, RecursionError):  # which the import tells
                for node in ast.walk(ast.parse(file.read_bytes())):
                    if isinstance(node, ast.Import):
                        tops |= {alias.name.partition(".")[0] for alias in node.names}
                    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                        tops.add(node.module.partition(".")[0])
        beside = {top: _beside(top, place.parent) for top in sorted(tops - {*OURS})}
        todo += [one for top, one in beside.items() if one is not None and not _installed(top)]
    return found


def _files(spec: str, place: Path) -> list[Path]:
    """The files that importing a spec runs; of an installed package, whose others are its own affair, the module's."""
    module = spec.partition(":")[0]
    if not _installed(module.partition(".")[0]):
        return [file for one in _with_imports(place) for file in _sources(one)]
    inner = place.joinpath(*module.split(".")[1:])
    return [file for file in (place, inner.with_suffix(".py"), inner / "__init__.py") if file.is_file()]


def _sources(place: Path) -> list[Path]:
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def _beside(top: str, folder: Path) -> Path | None:
    """The file, or the folder of the package, of a user's module in a folder."""
    if (folder / f"{top}.py").is_file():
        return folder.resolve() / f"{top}.py"
    package = folder.resolve() / top
    return package if package.is_dir() and next(package.rglob("*.py"), None) else None


def _file_at(path: str) -> Path | None:
    places = (folder / Path(path).expanduser() for folder in (*reversed(_folders), Path.cwd()))
    return next((place.resolve() for place in places if place.is_file()), None)


def _found(top: str) -> tuple[str | None, Path | None]:
    """Return the `_origin` of a module and where it is: if Python finds none, the user's that may become importable."""
    if (origin := _origin(top)) is None:
        homes = (*reversed(_folders), Path.cwd())
        return None, next(filter(None, (_beside(top, home) for home in homes)), None)
    path = Path(origin).absolute()
    return origin, (path.parent if path.name == "__init__.py" else path) if origin else None


def _require_same(spec: str, top: str, origin: str, file: Path) -> None:
    """Refuse a file whose name Python knows for another module, unless that is a copy of it."""
    found = Path(origin)
    if found.resolve() == file.resolve():
        return
    if not found.is_file() or file.name == "__init__.py" or not filecmp.cmp(found, file, shallow=False):
        raise UserError(
            f"{spec!r}: Python knows another module {top!r} ({origin or 'built in'}) than {str(file)!r}: rename the "
            "file"
        )


def _installed(top: str) -> bool:
    """Whether a module is Python's own or that of an installed package."""
    if top in sys.stdlib_module_names:
        return True
    origin = _origin(top)
    return origin is not None and any(Path(origin).resolve().is_relative_to(folder) for folder in _LIBRARIES)


def _origin(top: str) -> str | None:
    """Return the file of a module that Python finds, a folder without one, "" for a built-in one; None where none."""
    if (module := sys.modules.get(top)) is not None:
        return getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
    if (spec := importlib.util.find_spec(top)) is None:
        return None
    return (spec.origin if spec.has_location else None) or next(iter(spec.submodule_search_locations or ()), "")


# -- hashes -------------------------------------------------------------------------------------------------------


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _known() -> set[str]:
    try:
        lines = (cache_folder() / "own_code.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    return _named | {line.partition(" ")[0] for line in lines}


def _remember(files: Iterable[Path]) -> None:
    """Take files for known from now on; where the cache cannot be written, in this process and no other."""
    hashes, known = {_sha256(file): file for file in files}, _known()
    for sha, file in hashes.items():
        for tell in _tell if sha not in _named else ():
            tell(f"code of your own: {file} (SHA-256 {sha})")
    new = {sha: file for sha, file in hashes.items() if sha not in known}
    _named.update(hashes)
    with suppress(OSError):
        if new:
            cache_folder().mkdir(parents=True, exist_ok=True)
            with (cache_folder() / "own_code.txt").open("a", encoding="utf-8") as listed:
                listed.write("".join(f"{sha}  {str(path)!r}\n" for sha, path in new.items()))
