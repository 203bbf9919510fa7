"""Which judge to ask, and how patiently."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from eval_suite.grading.judge.prompt import PROMPT_VERSION
from mmcorl.errors import Refused

_PATH = "/chat/completions"
_OPTIONS = ("concurrency", "timeout", "retries", "backoff", "max_backoff", "patience", "stop_after", "max_tokens")


@dataclass(frozen=True)
class JudgeSettings:
    """An endpoint that speaks the OpenAI chat-completions protocol; the defaults are the paper's judge on vLLM.

    Raises:
        Refused: a setting that cannot work.
    """

    base_url: str = "http://localhost:8000/v1"
    """Up to and with `/v1`; `/chat/completions` is added."""
    model: str = "Qwen/Qwen2.5-32B-Instruct"
    """Name under which the endpoint serves the judge."""
    api_key_env: str | None = None
    """Environment variable that holds the key, for an endpoint that wants one. The key itself is never a setting."""
    concurrency: int = 16
    """Requests under way at once, at most."""
    timeout: float = 60.0
    """Seconds one request may take as a whole."""
    retries: int = 5
    """Times a request is sent again after a dropped connection, a timeout, a reply that is no chat completion, or
    one of the statuses 408, 409 and 5xx."""
    backoff: float = 0.5
    """Seconds before the first retry; doubles with each one, and is shortened at random by up to a half."""
    max_backoff: float = 30.0
    """Seconds between retries, at most."""
    patience: float = 600.0
    """Seconds for which one question obeys a rate limit (429, Retry-After, x-ratelimit headers) before it counts
    as failed; nothing is ever sent before the time the endpoint named."""
    stop_after: int = 10
    """Questions that fail in a row before no more are asked."""
    max_tokens: int = 8
    """Room for the reply. A judge that thinks first needs more, and its reply must still be one word."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields added to the body of each request, or removed from it by None: `max_tokens: None` with
    `max_completion_tokens`, say. They become part of the judge's name."""

    def __post_init__(self) -> None:
        _check_url(self.base_url)
        if not self.model.strip():
            raise Refused("judge model '' names no model; give the name under which the endpoint serves it.")
        for name, least in (("concurrency", 1), ("retries", 0), ("stop_after", 1), ("max_tokens", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise Refused(f"judge {name} {value!r} is not a whole number of at least {least}.")
        for name in ("timeout", "backoff", "max_backoff", "patience"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise Refused(f"judge {name} {value!r} is not a number of seconds above 0.")
        try:
            json.dumps(dict(self.extra))
        except (TypeError, ValueError) as error:
            raise Refused(f"judge extra {self.extra!r} cannot be sent as JSON ({error}).") from error
        if self.api_key_env is not None and not re.fullmatch("[A-Z_][A-Z0-9_]*", self.api_key_env):
            # Not repeated: it may be the key itself.
            raise Refused(
                "what is given for the judge's key is not the name of an environment variable (capitals, digits, "
                "underscores); put the key into a variable such as JUDGE_API_KEY and name that."
            )

    @property
    def name(self) -> str:
        """The judge as recorded beside its verdicts: the model, and what `extra` changes about it."""
        return self.model + (" " + json.dumps(dict(self.extra), sort_keys=True) if self.extra else "")

    def facts(self) -> dict[str, str]:
        """What is recorded beside every verdict."""
        return {"model": self.name, "prompt_version": PROMPT_VERSION}

    @property
    def url(self) -> str:
        """Where requests go."""
        return self.base_url.rstrip("/").removesuffix(_PATH) + _PATH

    def api_key(self) -> str | None:
        """The key, read when it is needed and kept nowhere; None when no variable is named.

        Raises:
            Refused: the variable is not set, or holds what cannot be a key.
        """
        if self.api_key_env is None:
            return None
        value = os.environ.get(self.api_key_env, "").strip()
        if not value:
            raise Refused(
                f"the variable {self.api_key_env}, named for the judge's key, is not set; export it, or name none for "
                "an endpoint without keys."
            )
        if not (value.isascii() and value.isprintable()) or " " in value:
            raise Refused(f"the variable {self.api_key_env} holds no API key: spaces or characters outside ASCII.")
        return value


def with_options(settings: JudgeSettings, options: Iterable[str]) -> JudgeSettings:
    """Settings changed by texts such as `concurrency=64` or `extra.max_completion_tokens=64`; values are JSON or text.

    Raises:
        Refused: a text of another form, an unknown name, or a value that cannot work.
    """
    changes: dict[str, Any] = {}
    extra = dict(settings.extra)
    for text in options:
        name, equals, value = text.partition("=")
        if not equals:
            raise Refused(f"judge option {text!r} sets nothing; write it as NAME=VALUE.")
        try:
            told = json.loads(value)
        except ValueError:
            told = value
        if name.startswith("extra."):
            extra[name.removeprefix("extra.")] = told
        elif name in _OPTIONS:
            changes[name] = told
        else:
            raise Refused(
                f"judge option {name!r} is unknown; use {', '.join(_OPTIONS)}, or extra.NAME for its requests."
            )
    return replace(settings, **changes, extra=extra)


def _check_url(url: str) -> None:
    rule = "is not the address of an endpoint; write it like http://localhost:8000/v1."
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise Refused(f"judge {url!r} {rule}") from error
    if parts.username is not None or parts.query or parts.fragment:
        # Not repeated: what stands there is usually a key.
        raise Refused(
            f"the judge's address at {parts.hostname} holds a user name, a query or a fragment; leave it out, and name "
            "the variable with the key (--judge-key-env, or api_key_env in Python)."
        )
    if not usable or not url.isascii() or not url.isprintable() or " " in url:
        raise Refused(f"judge {url!r} {rule}")
