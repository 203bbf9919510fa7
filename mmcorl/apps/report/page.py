"""The frame of every HTML page: one template environment with escaping, one base template."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Control characters, which HTML forbids, and lone surrogates, which UTF-8 cannot encode."""


_SECTION = re.compile(r'<section id="([\w-]+)">\s*<h2>(.*?)</h2>', re.DOTALL)
CONTENTS = '<nav class="contents"></nav>'
"""Where a page gets its table of contents; no text of others can hold it, since all of it is escaped."""


def render(template: str, package: str = "mmcorl.apps.report", **values: Any) -> str:
    """Return a page: `template`, in the `templates` folder of `package`, extends base.html of this package.

    Sections with an id and a heading become its table of contents.
    """
    text = _environment(package).get_template(template).render({"links": (), "origin": ()} | values)
    listed = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in _SECTION.findall(text))
    contents = f'<nav class="contents" aria-label="sections"><ul>{listed}</ul></nav>' if listed else ""
    return text.replace(CONTENTS, contents, 1)


def policy_hash(text: str) -> str:
    """Return what a content policy calls an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


def clean(text: str) -> str:
    """Return the text with every character that HTML or UTF-8 cannot hold replaced by U+FFFD."""
    return _UNWRITABLE.sub("�", text.replace("\r\n", "\n").replace("\r", "\n"))


def duration(seconds: float | None) -> str:
    """Return seconds as text: 8.4 s, 1 min 05 s, 2 h 03 min."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def share(value: float | None) -> str:
    """Return a share in 0..1 with three decimals, or a dash."""
    return "–" if value is None else f"{value:.3f}"


@cache
def _environment(package: str) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(name) for name in dict.fromkeys((package, "mmcorl.apps.report"))]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        # Escaping follows; Markup is ours.
        finalize=lambda value: clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (resources.files("mmcorl.apps.report") / "templates" / "report.js").read_text(encoding="utf-8")
    environment.globals.update(page_script=Markup(script), page_script_hash=Markup(policy_hash(script)))
    environment.filters.update(
        share=share,
        duration=duration,
        change=lambda value: "–" if value is None else f"{value:+.3f}",
        thousands=lambda value: f"{value:,}" if isinstance(value, int) else str(value),
    )
    return environment
