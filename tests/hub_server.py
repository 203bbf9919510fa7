"""A stand-in for the server of the Hugging Face Hub: takes what its client sends to make a repository and to commit."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Hub:
    """What the server holds and was asked."""

    url: str = ""
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Files of each repository by path."""
    private: dict[str, bool] = field(default_factory=dict)
    default_private: bool = False
    """Whether repositories are private where their maker does not say."""
    large: dict[str, bytes] = field(default_factory=dict)
    """Files that came by LFS, by sha256."""
    asked: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    """Repositories that may not be made."""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, object]:
        """Return status and JSON for one request."""
        path = path.partition("?")[0]
        self.asked.append(f"{method} {path}")
        parts = path.strip("/").split("/")
        if method == "PUT":
            self.large[parts[-1]] = body
            return 200, {}
        sent = json.loads(body) if body and not path.endswith("/commit/main") else {}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            repo = f"{sent['organization']}/{sent['name']}"
            if repo in self.refused:
                return 403, {"error": f"You don't have the rights to create a model under {sent['organization']}"}
            if repo in self.repos:
                return 409, {"error": "You already created this model repo", "url": f"{self.url}/{repo}"}
            asked = sent.get("private") or sent.get("visibility") == "private"
            self.repos[repo], self.private[repo] = {}, asked or self.default_private
            return 200, {"url": f"{self.url}/{repo}", "name": repo}
        if path.endswith(".git/info/lfs/objects/batch"):
            return 200, {"transfer": "basic", "objects": [self._action(one) for one in sent["objects"]]}
        if parts[:2] != ["api", "models"] or (repo := "/".join(parts[2:4])) not in self.repos:
            return 404, {"error": "not found"}
        if parts[4:5] == ["preupload"]:
            return 200, {"files": [self._mode(repo, one) for one in sent["files"]]}
        if parts[4:5] == ["commit"]:
            for line in map(json.loads, body.splitlines()):
                self._commit(self.repos[repo], line["key"], line["value"])
            return 200, {"commitUrl": f"{self.url}/{repo}/commit/1", "commitOid": "1" * 40}
        there = [{"rfilename": name} for name in self.repos[repo]]
        known = {"siblings": there, "private": self.private.get(repo, False), "cardData": {"license": "mit"}}
        return 200, {"id": repo, "sha": "1" * 40, **known}

    def _action(self, one: dict) -> dict:
        known = one["oid"] in self.large
        return one | ({} if known else {"actions": {"upload": {"href": f"{self.url}/large/{one['oid']}"}}})

    def _mode(self, repo: str, one: dict) -> dict:
        is_large = one["path"].endswith(".safetensors")
        known = self.repos[repo].get(one["path"])
        digest = None
        if known is not None:
            blob = b"blob %d\0" % len(known) + known
            digest = hashlib.sha256(known).hexdigest() if is_large else hashlib.sha1(blob).hexdigest()
        return {
            "path": one["path"],
            "uploadMode": "lfs" if is_large else "regular",
            "shouldIgnore": False,
            "oid": digest,
        }

    def _commit(self, files: dict[str, bytes], key: str, value: dict) -> None:
        if key == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif key == "lfsFile":
            files[value["path"]] = self.large[value["oid"]]
        elif key == "deletedFile":
            del files[value["path"]]


@contextlib.contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _reply(self) -> None:
            if self.path.startswith(("/api/models", "/api/repos")):
                hub.tokens.add(self.headers.get("Authorization"))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content = hub.answer(self.command, self.path, body)
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if status == 404 and self.path.startswith("/api/models/"):
                self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_HEAD = _reply  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
