"""What goes wrong on purpose, and how often each route was asked for."""

from __future__ import annotations

import asyncio
import fnmatch
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


@dataclass(slots=True)
class Rule:
    """What happens to requests of a route such as `POST /process/*`; `times` None means always."""

    route: str
    kind: str  # fail, hang, lose, spoil, delay
    times: int | None = 1
    status: int = 500
    message: str = "Internal Server Error"
    seconds: float = 0.0
    sandbox: str | None = None


class Faults:
    """The rules in force and the counters."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self._rules: list[Rule] = []
        self._release = asyncio.Event()

    def add(self, rule: Rule) -> None:
        """Put a rule in force; earlier ones come first."""
        self._rules.append(rule)

    def heal(self) -> None:
        """Drop all rules and let requests go that hang."""
        self._rules.clear()
        self._release.set()
        self._release = asyncio.Event()

    def _rule(self, route: str, sandbox: str | None) -> Rule | None:
        for rule in self._rules:
            wanted = rule.sandbox in (None, sandbox) and fnmatch.fnmatchcase(route, rule.route)
            if wanted and rule.times != 0:
                rule.times = None if rule.times is None else rule.times - 1
                return rule
        return None

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Count a request and apply the first rule for its route."""
        route = route_of(request)
        self.requests[route] += 1
        rule = self._rule(route, request.match_info.get("box"))
        release = self._release
        if rule is None:
            return await handler(request)
        if rule.kind == "fail":
            return refusal(rule.status, rule.message)
        if rule.kind == "delay":
            await asyncio.sleep(rule.seconds)
            return await handler(request)
        if rule.kind in ("lose", "spoil"):
            await handler(request)
        if rule.kind == "spoil":
            return refusal(rule.status, rule.message)
        await release.wait()
        return refusal(503, "the connection was given up")


class RefusedError(Exception):
    """What a handler raises to refuse a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def route_of(request: web.Request) -> str:
    """Return the method and path of a route, without where it is mounted: `POST /sandbox`, `GET /files/info`."""
    resource = request.match_info.route.resource
    path = request.path if resource is None else resource.canonical
    return f"{request.method} {path.removeprefix('/api').removeprefix('/toolbox/{box}')}"


def refusal(status: int, message: str) -> web.Response:
    """Return an error as the API writes it."""
    return web.json_response({"statusCode": status, "message": message, "error": message}, status=status)
