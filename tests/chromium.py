"""A real browser for tests of pages: Chromium, driven through the DevTools protocol on a pipe."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXECUTABLE = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_SWITCHES = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-quic", "--remote-debugging-pipe"),
)


class Page:
    """One tab. Everything that went wrong in it is kept in `problems`, every request in `requests`."""

    def __init__(self, send: int, receive: int) -> None:
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._send, self._receive, self._buffer, self._number = send, receive, b"", 0
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    _session = None

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the window's size and colour scheme."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, page: Path | str, ready: str = "document.readyState === 'complete'") -> float:
        """Load a file or an address and wait until the expression `ready` holds; returns the seconds that took."""
        start = time.monotonic()
        self._call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        self.until(ready)
        return time.monotonic() - start

    def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        told = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise AssertionError(told["exceptionDetails"])
        return told["result"].get("value")

    def until(self, expression: str, seconds: float = 30) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(expression):
            assert time.monotonic() < end, f"{expression} is still not true after {seconds} s"
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, **({"text": key} if len(key) == 1 else {}))

    def click(self, x: float, y: float) -> None:
        """Click at a place of the window."""
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path) -> None:
        """Write what is in sight as PNG."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._send, data) :]
        while True:
            told = self._read()
            if told.get("id") == number:
                assert "error" not in told, (method, told["error"])
                result: dict[str, Any] = told["result"]
                return result
            self._note(told)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receive], [], [], 60)
            assert ready, "the browser does not answer"
            data = os.read(self._receive, 1 << 20)
            assert data, "the browser has gone"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        told: dict[str, Any] = json.loads(line)
        return told

    def _note(self, told: dict[str, Any]) -> None:
        method, parameters = told.get("method"), told.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(parameters["args"])[:500])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A fresh browser with one tab; `profile` is a folder for its files. It is gone when the block ends."""
    assert EXECUTABLE is not None
    profile.mkdir(parents=True, exist_ok=True)
    to_browser, send = os.pipe()
    receive, from_browser = os.pipe()
    # The browser reads commands at descriptor 3 and answers at 4; higher copies cannot be in the way of these.
    theirs = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in (to_browser, from_browser)]
    actions: list[Any] = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    actions += [(os.POSIX_SPAWN_DUP2, theirs[0], 3), (os.POSIX_SPAWN_DUP2, theirs[1], 4)]
    command = [EXECUTABLE, *_SWITCHES, f"--user-data-dir={profile}", "about:blank"]
    process = os.posix_spawn(EXECUTABLE, command, dict(os.environ), file_actions=actions, setpgroup=0)
    for end in (to_browser, from_browser, *theirs):
        os.close(end)
    try:
        yield Page(send, receive)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(send)
        os.close(receive)
