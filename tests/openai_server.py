"""A real HTTP server that speaks the OpenAI chat-completions protocol and behaves as a test tells it.

    with OpenAIServer(say("correct")) as server:
        judge_all(requests, JudgeSettings(base_url=server.url))
    assert len(server.calls) == 3

`python tests/openai_server.py [correct|incorrect|...]` serves one fixed reply until it is stopped, for trying by hand.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Reply:
    """What the server sends; a chat completion of `text` unless told otherwise."""

    text: str | None = "correct"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """Sent as it is instead of a completion or an error."""
    finish_reason: str = "stop"
    delay: float = 0.0
    """Seconds before anything is sent."""
    disconnect: bool = False
    """Close the connection instead of replying."""
    endless: bytes = b""
    """Sent over and over instead of a body, for as long as the client listens."""
    drip: float = 0.0
    """Seconds between single bytes of the body."""

    def payload(self, model: str) -> bytes:
        """The body."""
        if self.body is not None:
            return self.body
        if self.status != 200:
            return json.dumps({"error": {"message": self.text, "type": "error", "code": None}}).encode()
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": self.text},
            "finish_reason": self.finish_reason,
        }
        return json.dumps({"id": "x", "object": "chat.completion", "model": model, "choices": [choice]}).encode()


@dataclass(frozen=True)
class Call:
    """One request as it came in."""

    number: int
    """From 0, in order of arrival."""
    time: float
    """`time.monotonic()` of the server."""
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def prompt(self) -> str:
        """The only message."""
        (message,) = self.body["messages"]
        assert message["role"] == "user"
        return message["content"]

    def quoted(self, heading: str) -> str:
        """The quoted lines below the heading that starts so: what is shown as question, options, or answer."""
        lines = iter(self.prompt.split("\n"))
        for line in lines:
            if line.startswith(heading) and line.endswith(":"):
                return "\n".join(quote[2:] for quote in itertools.takewhile(lambda text: text.startswith("| "), lines))
        raise LookupError(heading)


Behaviour = Callable[[Call], Reply]


def say(text: str | None, **other: Any) -> Behaviour:
    """Always the same reply."""
    reply = Reply(text, **other)
    return lambda call: reply


def fail(status: int, message: str = "no", **headers: str) -> Behaviour:
    """Always the same error; `retry_after="1"` becomes the header retry-after."""
    return say(message, status=status, headers={name.replace("_", "-"): value for name, value in headers.items()})


def in_turn(*replies: Behaviour) -> Behaviour:
    """The first call gets the first, and so on; the last goes on for ever."""
    return lambda call: replies[min(call.number, len(replies) - 1)](call)


def knows(truth: Mapping[tuple[str, str], bool]) -> Behaviour:
    """A judge that is right: known answer and candidate answer, as shown to it, to whether they agree.

    Raises in the server, hence replies 500, when asked about a pair that is not in the table.
    """
    return lambda call: Reply(
        "correct" if truth[call.quoted("Known answer"), call.quoted("Candidate answer")] else "incorrect"
    )


class OpenAIServer:
    """Serves on a free port of this machine while used as a context manager."""

    def __init__(self, behaviour: Behaviour, port: int = 0) -> None:
        self.behaviour = behaviour
        self.calls: list[Call] = []
        self.most_at_once = 0
        """Requests under way at one time, at most."""
        self._at_once = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._http = _Server(("127.0.0.1", port), self._handler())
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self) -> str:
        """For `base_url`."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    @property
    def prompts(self) -> list[str]:
        """What was asked, in order of arrival."""
        return [call.prompt for call in self.calls]

    def __enter__(self) -> OpenAIServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                server._serve(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler

    def _serve(self, http: BaseHTTPRequestHandler) -> None:
        length = int(http.headers["content-length"])
        raw = http.rfile.read(length)
        if len(raw) < length:
            http.close_connection = True  # The client died while it sent.
            return
        body = json.loads(raw)
        headers = {name.lower(): value for name, value in http.headers.items()}
        with self._lock:
            call = Call(len(self.calls), time.monotonic(), http.path, headers, body)
            self.calls.append(call)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            if http.path != "/v1/chat/completions":
                reply = Reply("Not Found", status=404)
            else:
                try:
                    reply = self.behaviour(call)
                except LookupError as error:
                    reply = Reply(f"no such pair: {error}", status=500)
            self._closed.wait(reply.delay)
        finally:
            with self._lock:
                self._at_once -= 1
        if reply.disconnect:
            http.close_connection = True
            return
        payload = reply.payload(body.get("model", ""))
        head = {"Content-Type": "application/json", "Content-Length": str(len(payload)), **reply.headers}
        if reply.endless:
            head["Content-Length"] = str(2**60)
        lines = [f"HTTP/1.1 {reply.status} Told", *(f"{name}: {value}" for name, value in head.items()), "", ""]
        try:
            http.wfile.write("\r\n".join(lines).encode() + (b"" if reply.drip or reply.endless else payload))
            while reply.endless and not self._closed.is_set():
                http.wfile.write(reply.endless)
            for byte in payload if reply.drip else b"":
                http.wfile.write(bytes([byte]))
                if self._closed.wait(reply.drip):
                    break
        except OSError:
            http.close_connection = True  # The client did not wait.


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


if __name__ == "__main__":
    with OpenAIServer(say(sys.argv[1] if len(sys.argv) > 1 else "correct")) as served:
        print(served.url, flush=True)
        threading.Event().wait()
