"""Follow a reasoning effort on its way: asked for, sent by the agent, sent upstream, told by the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.records.jsontext import loads
from pytest_benchflow.records.values import mapping

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_benchflow.contracts import Dialect

STATIONS = ("asked", "agent", "upstream", "echoed")


def sent(dialect: Dialect, body: Mapping[str, Any], asked: str | None) -> dict[str, Any]:
    """Return the metadata of a request that an effort was asked for, or that names one; empty for all others."""
    named = dialect.effort(body)
    if asked is None and named is None:
        return {}
    return {"effort": {"asked": asked, "agent": named}}


def ended(dialect: Dialect, metadata: dict[str, Any], answer: bytes) -> list[str]:
    """Complete the evidence once the answer is whole; return a warning for each station where it changed."""
    evidence = metadata.get("effort")
    if evidence is None:
        return []
    translated = metadata.get("upstream")
    if "upstream_calls" in metadata:
        evidence["upstream"] = mapping(translated).get("effort")
        evidence["echoed"] = mapping(translated).get("response_effort")
    else:
        evidence["upstream"] = evidence["agent"]
        evidence["echoed"] = dialect.effort(loads(answer))
    warnings = []
    agent, upstream, echoed = (evidence[name] for name in STATIONS[1:])
    # Some formats ask for none by saying nothing.
    if agent is not None and upstream != agent and (agent, upstream) != ("none", None) and translated is not None:
        how = f"as {upstream}" if upstream else "without any"
        warnings.append(f"the reasoning effort {agent} of a request went to the provider {how}")
    if upstream is not None and echoed is not None and echoed != upstream:
        warnings.append(f"the provider answered with the reasoning effort {echoed} where {upstream} was sent")
    return warnings
