"""The markdown pages that users read, and what stands in them: commands, code, settings, links, pictures."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from paths import ROOT

PAGES = (
    *sorted(path.name for path in ROOT.glob("*.md")),
    "configs/README.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
)
SHELL = ("", "sh", "bash", "shell")
PROGRAMS = (
    *("mmcorl", "make", "pip", "python", "python3", "pytest"),
    *("source", "ray", "docker", "podman", "uv", "uvx", "git"),
)
"""First words by which a line is a command; others in a block without a language are output or text."""


PLACEHOLDER = re.compile(r"\.\.\.|…|\[[a-z]|^make (it|the|sure)")


@dataclass(frozen=True)
class Block:
    """One fenced or indented block of a page, or a code span (`language` is `span`)."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def blocks(page: str) -> tuple[Block, ...]:
    """All blocks of a page in order."""
    return tuple(_blocks(page, (ROOT / page).read_text(encoding="utf-8").splitlines()))


def _blocks(page: str, lines: list[str]) -> Iterator[Block]:
    fence: tuple[int, str, str, list[str]] | None = None
    indented: list[str] = []
    for number, line in enumerate([*lines, "end"], 1):
        if fence and line.strip().startswith(fence[2]) and not line.strip().strip("`"):
            yield Block(page, fence[0], fence[1], "\n".join(fence[3]))
            fence = None
        elif fence:
            fence[3].append(line)
        elif opening := re.match(r" *(```+)([\w-]*)", line):
            fence = (number + 1, opening[2], opening[1], [])
        elif re.match(r" {4,}\S", line) and (indented or not lines[number - 2].strip()):
            indented.append(line.strip())
        elif indented and line.strip():
            yield Block(page, number - len(indented) - 1, "", "\n".join(indented))
            indented = []
        if not fence and not indented:
            for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", line):
                yield Block(page, number, "span", span)


def commands(page: str) -> Iterator[tuple[str, str]]:
    """Yield (place, command) of every command of a page, continued lines joined; spans of code count where they begin
    with `mmcorl` and name no placeholder in brackets or with dots."""
    for block in blocks(page) if page != "CHANGELOG.md" else ():
        if block.language == "span":
            if re.match(r"(mmcorl|make) [a-z]", block.text) and not PLACEHOLDER.search(block.text):
                yield block.place, block.text
        elif block.language in SHELL:
            text = re.sub(r" *\\\n\s*", " ", block.text)
            for name, first in re.findall(r"for (\w+) in (\S+)", text):
                text = text.replace(f"${name}", first)
            for line in text.splitlines():
                line = line.strip().removeprefix("$ ")
                if line.split(" ")[0] in PROGRAMS and re.match(r"\S+ \S", line):
                    yield block.place, line


def words(command: str) -> list[str]:
    """The words of a command, without a comment."""
    return shlex.split(command, comments=True)


def anchors(page: str) -> set[str]:
    """The anchors of a page as GitHub makes them, and those that are written out."""
    text = re.sub(r"^ *```.*?^ *```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    found = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    for heading in re.findall(r"^#+ +(.+?)\s*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|<[^>]+>", r"\1", heading).replace("`", "").replace("*", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(slug if slug not in found else f"{slug}-1")
    return found


def links(page: str) -> Iterator[tuple[int, str]]:
    """Yield (line, target) of every link and picture of a page."""
    fenced = False
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        fenced ^= bool(re.match(r" *```", line))
        if not fenced:
            bare = re.sub(r"`[^`]*`", "", line)
            for target in re.findall(r"\]\(([^)\s]+)[^)]*\)|src=\"([^\"]+)\"|href=\"([^\"]+)\"", bare):
                yield number, next(filter(None, target))


def pictures() -> list[Path]:
    """Every image file of docs/."""
    return [p for p in sorted((ROOT / "docs").rglob("*")) if p.suffix in (".png", ".svg", ".jpg", ".gif", ".webp")]
