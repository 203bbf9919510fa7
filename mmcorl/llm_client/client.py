"""One endpoint: sends a prompt, tries again where that can help, and says in a sentence why not where it cannot."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx2

from mmcorl.llm_client.settings import EndpointSettings
from mmcorl.llm_client.waiting import Gate, backoff, retry_after, until_reset

Content = str | Sequence[Mapping[str, Any]]
"""Of one user message: text, or a list of parts as the protocol has them ({"type": "image_url", ...})."""
GREEDY: Mapping[str, Any] = {"temperature": 0}
"""The most likely reply, the same one each time."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_AGAIN = (408, 409)
_HOPELESS = {
    401: "refused the key; name a variable with a key it accepts ({key_option})",
    402: "wants to be paid; settle the account",
    403: "forbids it; check the key and what it may use",
    404: "does not know the address or the model {model!r}; check that its address ends in /v1 and what it serves",
    405: "takes no chat completions at this address; check that it ends in /v1",
}
_CONNECT_TIMEOUT = 10.0
_EXCERPT = 200
MAX_BODY = 2**20
"""Bytes of a response that are read: a long reply needs some 50,000, a broken server may never end."""


class Unanswered(Exception):
    """A question to which no reply came, in one sentence.

    Attributes:
        kind: what failed, in a word or a status, so that a thousand failures make one line.
        hopeless: any other question would have met the same.
    """

    def __init__(self, kind: str, sentence: str, *, hopeless: bool = False) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.hopeless = hopeless


@dataclass(frozen=True)
class Reply:
    """What the model said."""

    text: str
    cut_off: bool
    """It ran out of `max_tokens`."""


@dataclass(frozen=True)
class _Answer:
    """What a server sent."""

    status: int
    headers: Mapping[str, str]
    text: str


@dataclass(frozen=True)
class _Trouble:
    """A request that may be sent again."""

    unanswered: Unanswered
    wait: float | None = None
    """Seconds the endpoint asks for."""
    limited: bool = False
    """A rate limit rather than a fault."""


class Endpoint:
    """Asks one OpenAI-compatible endpoint; use it as an async context manager.

    Raises:
        UserError: the key's variable is not set.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        self.settings = settings
        self.sent = 0
        """HTTP requests sent, retries among them."""
        self._key = settings.api_key()
        self._gate = Gate()
        host = httpx2.URL(settings.url).host
        self._client = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            # The time of a request as a whole is bounded where it is sent; these count single reads.
            timeout=httpx2.Timeout(None, connect=min(_CONNECT_TIMEOUT, settings.timeout)),
            limits=httpx2.Limits(max_connections=settings.concurrency, max_keepalive_connections=settings.concurrency),
            # A redirect could carry the key elsewhere.
            follow_redirects=False,
            # A proxy of the environment cannot reach this machine.
            trust_env=host not in _LOOPBACK,
        )

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def ask(self, prompt: Content, sampling: Mapping[str, Any] = GREEDY) -> Reply:
        """The model's reply to one user message; `sampling` holds fields of the request, such as `seed`.

        Raises:
            Unanswered: no reply after all retries, or a refusal that no retry would change.
        """
        settings = self.settings
        failures = limits = 0
        limited_since: float | None = None
        body = settings.body(prompt, sampling)
        while True:
            await self._gate.passed()
            outcome = await self._send(body)
            if isinstance(outcome, Reply):
                return outcome
            if outcome.limited:
                # Bounded by time, not by count: with many requests under way, the same one can be turned away often.
                limits += 1
                now = time.monotonic()
                limited_since = now if limited_since is None else limited_since
                wait = outcome.wait or backoff(limits, settings.backoff, settings.max_backoff)
                if now + wait - limited_since > settings.patience:
                    raise outcome.unanswered
                self._gate.hold(wait)
                continue
            failures += 1
            if failures > settings.retries or (outcome.wait or 0.0) > settings.patience:
                raise outcome.unanswered
            if outcome.wait:
                self._gate.hold(outcome.wait)
            else:
                await asyncio.sleep(backoff(failures, settings.backoff, settings.max_backoff))

    async def _send(self, body: Mapping[str, Any]) -> Reply | _Trouble:
        """One request; raises `Unanswered` for what no retry would change."""
        self.sent += 1
        try:
            async with asyncio.timeout(self.settings.timeout):
                answer = await self._fetch(body)
        except TimeoutError:
            return _Trouble(self._unanswered("timeout", f"gave no reply within {self.settings.timeout:g} s"))
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            sentence = f"cannot be reached ({_brief(error)}); start it, or correct its address"
            return _Trouble(self._unanswered("connect", sentence, hopeless=True))
        except httpx2.RequestError as error:
            return _Trouble(self._unanswered("connection", f"broke the connection ({_brief(error)})"))
        return self._read(answer)

    async def _fetch(self, body: Mapping[str, Any]) -> _Answer:
        """The server's answer, or as much of it as could be one."""
        sent = bytearray()
        async with self._client.stream("POST", self.settings.url, json=body) as response:
            async for part in response.aiter_bytes():
                sent += part
                if len(sent) > MAX_BODY:
                    break
        return _Answer(response.status_code, response.headers, sent[:MAX_BODY].decode("utf-8", "replace"))

    def _read(self, response: _Answer) -> Reply | _Trouble:
        status = response.status
        if status == 200:
            reset = until_reset(response.headers)
            if reset is not None and reset <= self.settings.patience:
                self._gate.hold(reset)
            reply = self._reply(response.text)
            if reply is None:
                sentence = f"replied with something that is no chat completion{self._excerpt(response.text)}"
                return _Trouble(self._unanswered("malformed", sentence))
            return reply
        message, code = _error(response.text)
        said = self._excerpt(message)
        kind = str(status)
        if status == 429:
            if code == "insufficient_quota":
                raise self._unanswered(code, f"says that the account's quota is spent{said}", hopeless=True)
            wait = retry_after(response.headers) or until_reset(response.headers)
            asks = f", asking for {wait:g} s" if wait else ""
            sentence = f"kept to its rate limit for longer than patience={self.settings.patience:g} s (429{asks}){said}"
            return _Trouble(self._unanswered(kind, sentence), wait, limited=True)
        if status in _AGAIN or status >= 500:
            sentence = f"answered {status} to {self.settings.retries + 1} tries{said}"
            return _Trouble(self._unanswered(kind, sentence), retry_after(response.headers))
        if status in _HOPELESS:
            advice = _HOPELESS[status].format(model=self.settings.model, key_option=self.settings.KEY_OPTION)
            raise self._unanswered(kind, f"answered {status}: it {advice}{said}", hopeless=True)
        if status < 400:
            sentence = f"answered {status}, no chat completion; correct its address (redirects are not followed)"
            raise self._unanswered(kind, sentence, hopeless=True)
        raise self._unanswered(kind, f"refused the request with {status}{said}")

    def _reply(self, text: str) -> Reply | None:
        """The first choice's text; None if the body is no chat completion. No text at all is an empty reply."""
        try:
            choice = json.loads(text)["choices"][0]
            content = choice["message"].get("content")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None
        if content is not None and not isinstance(content, str):
            return None
        return Reply(self._redacted(content or ""), choice.get("finish_reason") == "length")

    def _unanswered(self, kind: str, sentence: str, *, hopeless: bool = False) -> Unanswered:
        return Unanswered(
            kind, self._redacted(f"the {self.settings.ROLE} at {self.settings.base_url} {sentence}."), hopeless=hopeless
        )

    def _excerpt(self, text: str) -> str:
        """The first words of what a server said, on one line, in brackets."""
        words = " ".join("".join(c if c.isprintable() else " " for c in self._redacted(text)[: 4 * _EXCERPT]).split())
        return f' (it said: "{words[:_EXCERPT]}")' if words else ""

    def _redacted(self, text: str) -> str:
        # Servers quote the key when they refuse it.
        return text.replace(self._key, "***") if self._key else text


def _error(text: str) -> tuple[str, str | None]:
    """Message and code of an error: under `error` (OpenAI, vLLM), flat (older vLLM), `detail` (FastAPI), or text."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return text, None
    inner = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(inner, dict):
        code = inner.get("code")
        message = inner.get("message", inner.get("detail"))
        if message is not None:
            return message if isinstance(message, str) else json.dumps(message), code if isinstance(code, str) else None
    return inner if isinstance(inner, str) else text, None


def _brief(error: Exception) -> str:
    return str(error) or type(error).__name__
