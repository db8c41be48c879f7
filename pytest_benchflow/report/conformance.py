"""Write what a conformance check found: a table for a terminal, and a JSON file."""

from __future__ import annotations

from collections import Counter
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from pytest_benchflow import __version__
from pytest_benchflow.report.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FILE_NAME = "conformance.json"
_LONGEST = 400
_STATUSES = ("supported", "not supported", "not applicable")


def table_lines(agent: str, found: Sequence[Mapping[str, Any]], width: int) -> Iterator[tuple[str, dict[str, bool]]]:
    """Yield the lines of one agent's table, each with its colour: what was found, capability by capability."""
    counts = Counter(record["status"] for record in found)
    yield f"{agent}: {', '.join(f'{counts[status]} {status}' for status in _STATUSES if counts[status])}", {}
    longest = max(len(record["capability"]) for record in found)
    for record in found:
        need = "required" if record["required"] else "reported"
        head = f"  {record['capability']:<{longest}}  {need}  {record['status']}"
        said = one_line(record["detail"], limit=_LONGEST)
        fits = len(head) + len(said) + 2 <= width
        yield f"{head}: {said}" if said and fits else head, _colour(record)
        for part in wrap(said, max(width - 6, 40)) if not fits else ():
            yield f"      {part}", {}


def _colour(record: Mapping[str, Any]) -> dict[str, bool]:
    if record["status"] != "not supported":
        return {"green": True} if record["status"] == "supported" else {}
    return {"red": True} if record["required"] else {"yellow": True}


def as_json(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return what conformance.json holds: for each agent its version, and the capabilities that were looked at."""
    return {
        "schema_version": "1.0",
        "plugin_version": __version__,
        "agents": [
            {
                "agent": agent,
                "agent_version": records[0]["agent_version"],
                "conforms": all(record["status"] != "not supported" or not record["required"] for record in records),
                "capabilities": [
                    {key: value for key, value in record.items() if key not in ("agent", "agent_version")}
                    for record in records
                ],
            }
            for agent, records in found.items()
        ],
    }
