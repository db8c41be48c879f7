"""Compare what a program wrote, as rows and as a manifest, with what a case pins."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Json = dict[str, Any]


def strict_json(text: str) -> Any:
    """Parse JSON without NaN and infinities. Raises: ValueError."""
    return json.loads(text, parse_constant=_no_constant)


def same(expected: Any, got: Any) -> bool:
    """Tell equality, where an expected string may list alternatives as "a|b"."""
    if isinstance(expected, str) and "|" in expected:
        return got in expected.split("|")
    if isinstance(expected, list) and isinstance(got, list):
        return len(expected) == len(got) and all(map(same, expected, got))
    if isinstance(expected, float) or isinstance(got, float):
        return isinstance(got, int | float) and not isinstance(got, bool) and bool(expected == got)
    return type(expected) is type(got) and bool(expected == got)


def pin_problems(spec: Json, problems_of: Callable[[Json], list[str]]) -> list[str]:
    """Return problems of the pins in `spec`, and of the best of its `any_of`."""
    bad = problems_of(spec)
    tried = [problems_of(option) for option in spec.get("any_of") or ()]
    if tried and all(tried):
        bad.append("none of any_of holds: " + " // ".join("; ".join(each) for each in tried))
    return bad


def read_rows(path: Path) -> tuple[list[Json], list[str]]:
    """Return the rows of a file, and what is wrong with its lines."""
    rows: list[Json] = []
    bad: list[str] = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = strict_json(line.decode("utf-8"))
            json.dumps(row, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            bad.append(f"row {number}: lone surrogate")
        except ValueError as error:
            bad.append(f"row {number}: {error}")
        else:
            if isinstance(row, dict):
                rows.append(row)
            else:
                bad.append(f"row {number}: not an object")
    return rows, bad


def rows_problems(pins: Json, rows: list[Json]) -> list[str]:
    """Return where rows differ from what is pinned."""
    bad = []
    texts = [f"{_text(row)}\n{json.dumps(row, ensure_ascii=False)}" for row in rows]
    messages = [message for row in rows for message in _messages(row)]
    if "rows" in pins and pins["rows"] != len(rows):
        bad.append(f"rows: want {pins['rows']}, got {len(rows)}")
    bad += [f"no row contains {p!r}" for p in pins.get("rows_contain") or () if not any(p in text for text in texts)]
    bad += [f"a row contains {p!r}" for p in pins.get("rows_lack") or () if any(p in text for text in texts)]
    if "row_messages_roles" in pins:
        roles = sorted([str(message.get("role")) for message in _messages(row)] for row in rows)
        if roles != sorted(pins["row_messages_roles"]):
            bad.append(f"roles: want {pins['row_messages_roles']}, got {roles}")
    for pattern in pins.get("messages_any") or ():
        if not any(_matches(pattern, message) for message in messages):
            bad.append(f"no message matches {json.dumps(pattern)}")
    for pattern in pins.get("messages_none") or ():
        if any(_matches(pattern, message) for message in messages):
            bad.append(f"a message matches {json.dumps(pattern)}")
    bad += _tool_problems(pins, rows)
    empty = any(message.get("role") == "user" and not str(message.get("content") or "").strip() for message in messages)
    if pins.get("no_empty_user") and empty:
        bad.append("an empty user message")
    if "row_ready" in pins:
        ready = [(row.get("info") or {}).get("training_ready") for row in rows]
        if not rows or any(each is not pins["row_ready"] for each in ready):
            bad.append(f"row_ready: want {pins['row_ready']}, got {ready}")
    return bad


def row_faults(row: Json, where: str) -> list[str]:
    """Return what breaks a rule that holds for every exported row."""
    messages, tools = row.get("messages"), row.get("tool_defs")
    if not isinstance(messages, list) or not messages:
        return [f"{where}: no messages"]
    bad = [] if any(message.get("role") == "assistant" for message in messages) else [f"{where}: no assistant message"]
    if tools is not None and not isinstance(tools, str):
        bad.append(f"{where}: tool_defs is not a JSON string")
    seen: set[Any] = set()
    for place, message in enumerate(messages):
        role = message.get("role")
        if role not in ("system", "user", "assistant", "tool"):
            bad.append(f"{where}: messages[{place}] has role {role!r}")
        if role == "system" and place:
            bad.append(f"{where}: system message at index {place}")
        if "reasoning_content" in message:
            bad.append(f"{where}: messages[{place}] carries reasoning_content")
        for call in message.get("tool_calls") or ():
            seen.add(call.get("id"))
            if not _holds_object((call.get("function") or {}).get("arguments")):
                bad.append(f"{where}: arguments of {call.get('id')} are not a JSON object in a string")
        if role == "tool" and message.get("tool_call_id") not in seen:
            bad.append(f"{where}: tool result for unseen call {message.get('tool_call_id')!r}")
    return bad


def manifest_problems(pins: Json, manifest: Any) -> list[str]:
    """Return where an export's manifest differs from what is pinned."""
    bad, counts = [], _skip_counts(manifest)
    for pattern, want in (pins.get("skipped") or {}).items():
        got = sum(count for reason, count in counts.items() if re.search(pattern, reason, re.IGNORECASE))
        if got != want:
            bad.append(f"skipped {pattern!r}: want {want}, got {got} of {counts}")
    if "skipped_total" in pins and sum(counts.values()) != pins["skipped_total"]:
        bad.append(f"skipped_total: want {pins['skipped_total']}, got {counts}")
    if "seen" in pins and isinstance(manifest, dict) and manifest.get("rollouts_seen") != pins["seen"]:
        bad.append(f"rollouts_seen: want {pins['seen']}, got {manifest.get('rollouts_seen')}")
    return bad


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, child in value.items():
            yield str(key)
            yield from _strings(child)
    elif isinstance(value, list):
        for child in value:
            yield from _strings(child)


def _text(value: Any) -> str:
    return "\n".join(_strings(value))


def _messages(row: Json) -> list[Json]:
    messages = row.get("messages")
    if not isinstance(messages, list):
        messages = [*(row.get("prompt") or ()), *(row.get("completion") or ())]
    return [message for message in messages if isinstance(message, dict)]


def _functions(row: Json) -> list[Json]:
    tools = row.get("tool_defs", row.get("tools"))
    tools = json.loads(tools) if isinstance(tools, str) else tools
    return [tool["function"] if isinstance(tool.get("function"), dict) else tool for tool in tools or ()]


def _tool_problems(pins: Json, rows: list[Json]) -> list[str]:
    bad = []
    if "tool_names" in pins:
        names = sorted(sorted(str(tool.get("name")) for tool in _functions(row)) for row in rows)
        if names != sorted(sorted(each) for each in pins["tool_names"]):
            bad.append(f"tool_names: want {pins['tool_names']}, got {names}")
    for name, parameters in (pins.get("tool_params") or {}).items():
        for tool in (tool for row in rows for tool in _functions(row) if tool.get("name") == name):
            got = sorted((tool.get("parameters") or {}).get("properties") or {})
            if got != sorted(parameters):
                bad.append(f"parameters of {name}: want {sorted(parameters)}, got {got}")
    return bad


def _matches(pattern: Json, message: Json) -> bool:
    return all(_matches_key(key, want, message) for key, want in pattern.items())


def _matches_key(key: str, want: Any, message: Json) -> bool:
    content = message.get("content")
    functions = [call.get("function") or {} for call in message.get("tool_calls") or ()]
    arguments = [json.loads(function.get("arguments") or "{}") for function in functions]
    names = [str(function.get("name")) for function in functions]
    if key in ("role", "tool_call_id"):
        return bool(message.get(key) == want)
    if key == "content_equals":
        return bool(content == want)
    if key == "content_contains":
        text = content if isinstance(content, str) else _text(content)
        return all(part in text for part in want)
    if key == "tool_call_ids":
        return bool([call.get("id") for call in message.get("tool_calls") or ()] == want)
    if key == "tool_call_names":
        return len(names) == len(want) and all(re.search(w, n, re.IGNORECASE) for w, n in zip(want, names, strict=True))
    if key == "arguments_equal":
        return bool(arguments == want)
    if key == "arguments_contain":
        return all(any(part in _text(each) for each in arguments) for part in want)
    raise KeyError(f"unknown message key {key}")


def _holds_object(arguments: Any) -> bool:
    try:
        return isinstance(arguments, str) and isinstance(strict_json(arguments), dict)
    except ValueError:
        return False


def _skip_counts(manifest: Any) -> dict[str, int]:
    """Return counts by reason: of an object `skipped`, or of flat `skipped_<reason>` keys."""
    if not isinstance(manifest, dict):
        return {}
    nested = manifest.get("skipped")
    flat = {key[len("skipped_") :]: value for key, value in manifest.items() if key.startswith("skipped_")}
    counts = nested if isinstance(nested, dict) else {} if isinstance(nested, list) else flat
    return {str(reason): count for reason, count in counts.items() if isinstance(count, int) and count}
