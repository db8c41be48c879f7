"""Tell an agent of a task's tool servers (MCP), in the words of the Agent Client Protocol."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_benchflow.tasks.task import McpServer

VARIABLE = "BENCHFLOW_MCP_SERVERS"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HTTP = ("http", "streamable-http")


def acp_servers(servers: Sequence[McpServer]) -> list[dict[str, Any]]:
    """Return the servers as session/new lists them."""
    return [_server(server) for server in servers]


def environment(servers: Sequence[McpServer]) -> dict[str, str]:
    """Return the variable that tells a launch_cmd of the servers, in the form that agents' own files have for them."""
    table = {server.name: _entry(server) for server in servers}
    return {VARIABLE: json.dumps({"mcpServers": table})} if table else {}


def unused(servers: Sequence[McpServer], agent: str) -> str | None:
    """Say that an agent makes no use of any of the servers."""
    names = ", ".join(server.name for server in servers)
    return f"needs MCP servers ({names}), of which the agent {agent} makes no use" if servers else None


def unreachable(servers: Sequence[McpServer]) -> str | None:
    """Say which server no agent can reach: it has a way to its model, and to what is in its own sandbox."""
    for server in servers:
        if server.url and urlsplit(server.url).hostname not in _LOOPBACK:
            return f"needs the MCP server {server.name} at {server.url}: an agent reaches its model and its own sandbox"
    return None


def not_taken(servers: Sequence[McpServer], capabilities: Any) -> McpServer | None:
    """Return the first server of a transport that an agent does not say it takes; stdio is taken by every agent."""
    said = capabilities.get("mcpCapabilities") if isinstance(capabilities, dict) else None
    taken: Mapping[str, Any] = said if isinstance(said, dict) else {}
    for server in servers:
        if server.transport != "stdio" and taken.get("http" if server.transport in _HTTP else "sse") is not True:
            return server
    return None


def _server(server: McpServer) -> dict[str, Any]:
    if server.transport == "stdio":
        return {"name": server.name, "command": server.command, "args": list(server.args), "env": []}
    headers = [{"name": name, "value": value} for name, value in server.headers.items()]
    kind = "http" if server.transport in _HTTP else "sse"
    return {"type": kind, "name": server.name, "url": server.url, "headers": headers}


def _entry(server: McpServer) -> dict[str, Any]:
    if server.transport == "stdio":
        return {"command": server.command, "args": list(server.args), "transport": "stdio"}
    kind = "http" if server.transport in _HTTP else "sse"
    return {"url": server.url, "headers": dict(server.headers), "transport": kind}
