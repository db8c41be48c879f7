"""Serve repositories over HTTP as the hub's client expects it, with faults on request."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.hubhost._repo import RefusedError, Repo

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

WRITER = "hf_" + "Writer0123456789abcdefghijklmnop"
READER = "hf_" + "Reader0123456789abcdefghijklmnop"

_NAME = r"(?P<name>[\w.-]+/[\w.-]+)"
_REV = r"(?P<rev>[^/]+)"
_ROUTES = {
    "GET info": rf"GET /api/datasets/{_NAME}(?:/revision/{_REV})?",
    "GET tree": rf"GET /api/datasets/{_NAME}/tree/{_REV}(?:/(?P<path>.+))?",
    "POST preupload": rf"POST /api/datasets/{_NAME}/preupload/{_REV}",
    "POST batch": rf"POST /datasets/{_NAME}\.git/info/lfs/objects/batch",
    "PUT object": rf"PUT /objects/{_NAME}/(?P<oid>[0-9a-f]{{64}})",
    "POST verify": rf"POST /verify/{_NAME}",
    "POST commit": rf"POST /api/datasets/{_NAME}/commit/{_REV}",
    "GET discussion": rf"GET /api/datasets/{_NAME}/discussions/(?P<number>\d+)",
    "POST discussion": rf"POST /api/datasets/{_NAME}/discussions",
}


@dataclass
class Fault:
    """What happens to the next requests of a route instead of an answer, or before it."""

    route: str
    status: int | None
    times: int
    headers: dict[str, str]
    lose_reply: bool  # the request is done all the same
    first: Callable[[], None] | None  # done before the request


class HubHost:
    """A hub on a port of its own; a context manager."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.requests: Counter[str] = Counter()
        self.writes: list[str] = []
        self.seen: list[str] = []  # whatever came in, headers and bodies
        self.page = 1000
        self._faults: list[Fault] = []
        self._lock = threading.RLock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> HubHost:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def environ(self) -> dict[str, str]:
        """Return the variables that lead a client here; chunked storage speaks a protocol of its own, and is off."""
        return {"HF_ENDPOINT": self.endpoint, "HF_TOKEN": WRITER, "HF_HUB_DISABLE_XET": "1"}

    def clear(self) -> None:
        """Forget repositories, faults and what was counted."""
        with self._lock:
            self.repos.clear()
            self.requests.clear()
            self.writes.clear()
            self.seen.clear()
            self._faults.clear()
            self.page = 1000

    def create(self, name: str, *, private: bool = False) -> Repo:
        """Make an empty repository."""
        return self.repos.setdefault(name, Repo(name, private))

    def fail(
        self,
        route: str,
        *,
        status: int | None = None,
        times: int = 1,
        headers: dict[str, str] | None = None,
        lose_reply: bool = False,
        first: Callable[[], None] | None = None,
    ) -> None:
        """Answer the next requests of a route with a status, or end their connection; or do something first."""
        self._faults.append(Fault(route, status, times, headers or {}, lose_reply, first))

    def answer(self, method: str, url: str, token: str | None, body: bytes) -> tuple[int, dict[str, str], Any] | None:
        """Return status, headers and JSON of an answer; None: the connection ends without one."""
        split = urlsplit(url)
        route, found = self._route(f"{method} {split.path}")
        with self._lock:
            self.requests[route] += 1
            if method != "GET":
                self.writes.append(route)
            fault = next((each for each in self._faults if each.route in (route, "*") and each.times > 0), None)
            if fault is not None:
                fault.times -= 1
                if fault.first is not None:
                    fault.first()
                elif not fault.lose_reply:
                    return (fault.status, fault.headers, {"error": "an invented fault"}) if fault.status else None
            try:
                headers, answer = self._do(route, found, parse_qs(split.query), token, body)
            except RefusedError as error:
                code = {"X-Error-Code": error.code} if error.code else {}
                return error.status, {**code, "X-Error-Message": str(error)}, {"error": str(error)}
            if fault is not None and fault.lose_reply:
                return (fault.status, fault.headers, {"error": "an invented fault"}) if fault.status else None
            return 200, headers, answer

    def _route(self, line: str) -> tuple[str, dict[str, str]]:
        for route, shape in _ROUTES.items():
            match = re.fullmatch(shape, line)
            if match:
                return route, {key: unquote(value) for key, value in match.groupdict().items() if value is not None}
        return line, {}

    def _do(
        self, route: str, found: dict[str, str], query: dict[str, list[str]], token: str | None, body: bytes
    ) -> tuple[dict[str, str], Any]:
        if "name" not in found:
            raise RefusedError(404, f"nothing is served at {route}")
        if token not in (None, WRITER, READER) and route != "PUT object":
            raise RefusedError(401, "Invalid credentials in Authorization header")
        repo = self.repos.get(found["name"])
        if repo is None or (repo.private and token is None):
            raise RefusedError(404, "Repository not found", "RepoNotFound")
        opens = route == "POST discussion" and token is not None
        # What may be written to storage is signed, and needs no token.
        if route not in ("PUT object", "GET info", "GET tree", "GET discussion") and token != WRITER and not opens:
            raise RefusedError(403, "you need write access to this repository")
        handler = getattr(self, "_" + route.lower().replace(" ", "_"))
        answer: tuple[dict[str, str], Any] = handler(repo, found, query, body)
        return answer

    def _get_info(self, repo: Repo, found: dict[str, str], *_: object) -> tuple[dict[str, str], Any]:
        commit = repo.at(found.get("rev", "main"))
        siblings = [{"rfilename": path} for path in commit.tree]
        told = {"id": repo.name, "sha": commit.id, "private": repo.private, "disabled": False, "gated": False}
        return {}, told | {"downloads": 0, "likes": 0, "tags": [], "siblings": siblings}

    def _get_tree(
        self, repo: Repo, found: dict[str, str], query: dict[str, list[str]], _: bytes
    ) -> tuple[dict[str, str], Any]:
        below = found["path"].rstrip("/") + "/" if "path" in found else ""
        entries: dict[str, dict[str, Any]] = {}
        for path, entry in sorted(repo.at(found["rev"]).tree.items()):
            if not path.startswith(below):
                continue
            parts = path.split("/")
            for end in range(below.count("/") + 1, len(parts)):
                folder = "/".join(parts[:end])
                entries[folder] = {"type": "directory", "path": folder, "oid": "0" * 40, "size": 0}
            told: dict[str, Any] = {"type": "file", "path": path, "oid": entry.oid, "size": entry.size}
            if entry.content is None:
                told |= {"oid": "1" * 40, "lfs": {"oid": entry.oid, "size": entry.size, "pointerSize": 134}}
            entries[path] = told
        if below and not entries:
            raise RefusedError(404, f"{below} does not exist", "EntryNotFound")
        start = int(query.get("cursor", ["0"])[0])
        page = list(entries.values())[start : start + self.page]
        if start + self.page >= len(entries):
            return {}, page
        path = f"/api/datasets/{repo.name}/tree/{found['rev']}" + (f"/{below.rstrip('/')}" if below else "")
        return {"Link": f'<{self.endpoint}{path}?recursive=True&cursor={start + self.page}>; rel="next"'}, page

    def _post_preupload(self, repo: Repo, found: dict[str, str], _: object, body: bytes) -> tuple[dict[str, str], Any]:
        return {}, {"files": [repo.upload_mode(file, found["rev"]) for file in json.loads(body)["files"]]}

    def _post_batch(self, repo: Repo, _: object, __: object, body: bytes) -> tuple[dict[str, str], Any]:
        told = []
        for each in json.loads(body)["objects"]:
            actions = {
                "upload": {"href": f"{self.endpoint}/objects/{repo.name}/{each['oid']}?signature=secret"},
                "verify": {"href": f"{self.endpoint}/verify/{repo.name}"},
            }
            told.append(each if each["oid"] in repo.objects else {**each, "actions": actions})
        return {}, {"transfer": "basic", "objects": told}

    def _put_object(self, repo: Repo, found: dict[str, str], _: object, body: bytes) -> tuple[dict[str, str], Any]:
        if hashlib.sha256(body).hexdigest() != found["oid"]:
            raise RefusedError(400, "these bytes have another digest")
        repo.stored_again += [found["oid"]] if found["oid"] in repo.objects else []
        repo.objects[found["oid"]] = body
        return {}, {}

    def _post_verify(self, repo: Repo, _: object, __: object, body: bytes) -> tuple[dict[str, str], Any]:
        if json.loads(body)["oid"] not in repo.objects:
            raise RefusedError(404, "no such object")
        return {}, {}

    def _post_commit(self, repo: Repo, found: dict[str, str], _: object, body: bytes) -> tuple[dict[str, str], Any]:
        made = repo.commit(found["rev"], [json.loads(line) for line in body.splitlines()])
        url = f"{self.endpoint}/datasets/{repo.name}/commit/{made.id}"
        return {}, {"success": True, "commitOid": made.id, "commitUrl": url}

    def _get_discussion(self, repo: Repo, found: dict[str, str], *_: object) -> tuple[dict[str, str], Any]:
        number = int(found["number"])
        if number not in repo.pulls:
            raise RefusedError(404, "Discussion not found")
        told = {**repo.pulls[number], "num": number, "createdAt": "2026-03-01T10:00:00.000Z", "events": []}
        told |= {"author": {"name": "mia"}, "repo": {"name": repo.name, "type": "dataset"}}
        return {}, told | {"changes": {"base": "refs/heads/main"}, "filesWithConflicts": False}

    def _post_discussion(self, repo: Repo, _: object, __: object, body: bytes) -> tuple[dict[str, str], Any]:
        asked = json.loads(body)
        assert asked["pullRequest"] is True
        return {}, {"num": repo.open_pull(asked["title"], asked["description"])}


def _handler(host: HubHost) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self._body()
            host.seen.append(f"{self.requestline}\n{self.headers}\n{body.decode('utf-8', 'replace')}")
            given = self.headers.get("Authorization", "")
            answer = host.answer(self.command, self.path, given.removeprefix("Bearer ") or None, body)
            if answer is None:
                self.close_connection = True
                return
            status, headers, value = answer
            data = json.dumps(value).encode()
            # Who was killed meanwhile reads no answer.
            with suppress(BrokenPipeError, ConnectionResetError):
                self._send(status, headers, data)

        def _send(self, status: int, headers: dict[str, str], data: bytes) -> None:
            self.send_response(status)
            for name, each in {**headers, "Content-Type": "application/json"}.items():
                self.send_header(name, each)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def log_message(self, *_: object) -> None:
            """Keep still."""

        do_GET = do_POST = do_PUT = _serve  # noqa: N815 - names of the base class

    return Handler
