"""The report of a run as it is published: without paths of this machine in what the page says of its making."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from markupsafe import escape

from mmcorl.errors import UserError
from mmcorl.report.page import clean
from mmcorl.run.reader import RunFiles
from mmcorl.share.private import public, public_command

_ORIGIN = re.compile(r'<dl class="origin">.*?</dl>', re.DOTALL)
_FACT = re.compile(r"(<dt>(folder|command)</dt><dd><code>)(.*?)(</code>)", re.DOTALL)
_CONFIG = re.compile(r'(<summary>config\.yaml</summary><pre tabindex="0">).*?(</pre>)', re.DOTALL)
_PICTURE = re.compile(r"(data:[\w/.+-]+;base64,[A-Za-z0-9+/=]+)")
"""Its letters and slashes are no paths."""


def public_page(run: Path, files: RunFiles, settings: str) -> bytes:
    """Return report.html without paths of this machine in its settings, facts, command and findings.

    Prompts and responses stay as they are. `settings` is the run's config as it is published. Raises UserError: the run
    has no report.
    """
    if not (run / "report.html").is_file():
        raise UserError(f"{str(run)!r} has no report.html: `mmcorl report {run}` writes it")
    page = (run / "report.html").read_text(encoding="utf-8")
    # All text of the page is escaped, so nothing in it can look like these blocks.
    page = _ORIGIN.sub(lambda block: _FACT.sub(_public_fact, block[0]), page)
    page = _CONFIG.sub(lambda block: f"{block[1]}{escape(clean(settings))}{block[2]}", page)
    shown = {text: public(text) for text in _texts([files.config, files.summary, files.data_check, _rows(files)])}
    # Of a home folder not even the name is left, which is the user's; `/` is no folder to hide.
    folders = {run.resolve(): run.resolve().name, Path.cwd(): Path.cwd().name, Path.home(): "~"}
    shown |= {str(folder): name for folder, name in folders.items() if folder.parent != folder}
    kept = {str(escape(clean(text))): str(escape(clean(own))) for text, own in shown.items() if text != own}
    if not kept:
        return page.encode()
    known = re.compile("|".join(rf"{re.escape(text)}(?![\w-])" for text in sorted(kept, key=len, reverse=True)))
    parts = _PICTURE.split(page)
    parts[::2] = [known.sub(lambda found: kept[found[0]], part) for part in parts[::2]]
    return "".join(parts).encode()


def _public_fact(found: re.Match[str]) -> str:
    before, name, text, after = found.groups()
    text = html.unescape(text)
    return f"{before}{escape(Path(text).name if name == 'folder' else public_command(text))}{after}"


def _rows(files: RunFiles) -> list[Any]:
    """Return what heads the prompts that are shown."""
    return [[entry.get("row"), entry.get("tag")] for entry in files.gallery]


def _texts(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping):
        for key, below in tree.items():
            yield from _texts([key, below])
    elif isinstance(tree, list | tuple):
        for below in tree:
            yield from _texts(below)
