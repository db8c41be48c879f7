#!/bin/sh
set -eu
cat > /app/migrate.py <<'PY'
"""Turn layered INI files into one JSON document."""

import json
import re
import sys
from decimal import Decimal
from pathlib import Path

SECTION = re.compile(r"(!?)\[([^\[\]]+)\]")
NUMBER = r"\d+(?:\.\d+)?"
SPAN = re.compile("".join(rf"(?:({NUMBER}){unit})?" for unit in ("d", "h", "m", "s", "ms")), re.ASCII)
SECONDS = (Decimal(86400), Decimal(3600), Decimal(60), Decimal(1), Decimal("0.001"))
SIZE = re.compile(r"(\d+)([kmg]?)", re.ASCII | re.IGNORECASE)
REFERENCE = re.compile(r"\$\$|\$\{([^{}]*)\}")
WORDS = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}


class Problem(Exception):
    """Its text is what the user is told."""


def load(path, seen=()):
    """Return sections as {name: {key: value}}, with all that the file extends."""
    if path.resolve() in seen:
        raise Problem(f"extends circle: {path.name}")
    lines = list(read(path))
    parent = None
    for _, section, kind, key, value in lines:
        if section == "meta" and key == "extends":
            parent = value if kind == "set" else None
    sections = load(path.parent / parent, (*seen, path.resolve())) if parent is not None else {}
    sections.pop("meta", None)
    for _, section, kind, key, value in lines:
        if kind == "drop section":
            sections.pop(section, None)
            continue
        keys = sections.setdefault(section, {})
        if kind == "set":
            keys[key] = value
        elif kind == "append":
            keys[key] = f"{keys[key]},{value}" if keys.get(key) else value
        elif kind == "drop":
            keys.pop(key, None)
    return sections


def read(path):
    """Yield (line number, section, kind, key, value)."""
    section = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = line.strip()
        if not line or line[0] in ";#":
            continue
        opened = SECTION.fullmatch(line)
        if opened and opened[2].strip():
            name = opened[2].strip()
            if opened[1]:
                yield number, name, "drop section", None, None
            else:
                section = name
            continue
        left, equals, right = line.partition("=")
        kind = "append" if left.endswith("+") else "set"
        key = left.removesuffix("+").strip()
        if line[0] == "!" and not equals:
            kind, key = "drop", line[1:].strip()
        elif not equals:
            key = ""
        if not key or section is None:
            raise Problem(f"{path.name}:{number}: bad line")
        yield number, section, kind, key, right.strip()


def ordered(sections):
    for section in sorted(sections):
        for key in sorted(sections[section]):
            yield section, key


def find(sections, section, reference):
    """Return the place that a reference names."""
    name, dot, key = reference.rpartition(".")
    place = (name if dot else section, key)
    if place[1] not in sections.get(place[0], {}):
        raise Problem(f"unknown reference: ${{{reference}}}")
    return place


def references(sections, place):
    value = sections[place[0]][place[1]]
    return [find(sections, place[0], match[1]) for match in REFERENCE.finditer(value) if match[1] is not None]


def resolve(sections):
    """Return {place: value with all references replaced}."""
    places = list(ordered(sections))
    needs = {place: references(sections, place) for place in places}
    for place in places:
        found, pending = set(), list(needs[place])
        while pending:
            other = pending.pop()
            if other not in found:
                found.add(other)
                pending += needs[other]
        if place in found:
            raise Problem(f"reference circle: {'.'.join(place)}")
    done = {}

    def value(place):
        if place not in done:
            done[place] = REFERENCE.sub(
                lambda match: "$" if match[1] is None else value(find(sections, place[0], match[1])),
                sections[place[0]][place[1]],
            )
        return done[place]

    return {place: value(place) for place in places}


def convert(key, value):
    """Return (new key, converted value). Raises: ValueError."""
    if key.endswith("_list"):
        return key.removesuffix("_list"), [item.strip() for item in value.split(",") if item.strip()]
    if key.endswith(("_timeout", "_interval")):
        match = SPAN.fullmatch(value + "s" if re.fullmatch(NUMBER, value, re.ASCII) else value)
        if not value or not match:
            raise ValueError
        total = sum(Decimal(number) * factor for number, factor in zip(match.groups(), SECONDS) if number)
        return f"{key}_seconds", int(total) if total == int(total) else float(total)
    if key.endswith("_size"):
        match = SIZE.fullmatch(value)
        if not match:
            raise ValueError
        return key.removesuffix("_size") + "_bytes", int(match[1]) * 1024 ** " kmg".index(match[2].lower() or " ")
    if value.lower() in WORDS:
        return key, WORDS[value.lower()]
    if re.fullmatch(r"0|-?[1-9]\d*", value, re.ASCII):
        return key, int(value)
    return key, value


def build(values):
    """Return the JSON document."""
    entries = []
    for (section, key), value in values.items():
        try:
            entries.append((section, key, *convert(key, value)))
        except ValueError:
            raise Problem(f"bad value: {section}.{key}") from None
    document, taken = {}, set()
    # Objects first: a value that stands where an object is wanted is the one that conflicts.
    for section, _, _, _ in entries:
        node = document
        for part in section.split("."):
            node = node.setdefault(part, {})
    for section, key, name, value in entries:
        node = document
        for part in section.split("."):
            node = node[part]
        if name in node:
            raise Problem(f"conflict: {section}.{key}")
        node[name] = value
    return document


def main(path):
    try:
        sections = load(Path(path))
        sections.pop("meta", None)
        document = build(resolve(sections))
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 1
    print(json.dumps(document, indent=2, ensure_ascii=False))
    return 0


sys.exit(main(sys.argv[1]))
PY
mkdir -p /app/migrated
for service in web worker; do
    python3 /app/migrate.py "/app/configs/$service.ini" > "/app/migrated/$service.json"
done
