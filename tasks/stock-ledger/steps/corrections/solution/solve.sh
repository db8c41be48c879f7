#!/bin/sh
set -eu
cd /app
python3 - <<'PY'
from pathlib import Path

path = Path("ledger.py")
text = path.read_text()


def replace(old, new):
    global text
    assert text.count(old) == 1, old
    text = text.replace(old, new)


replace('    if event.get("type") not in LEAST:\n', '    if event.get("type") not in (*LEAST, "void"):\n')
replace(
    '    if not isinstance(event.get("sku"), str):\n',
    '''    if event["type"] == "void":
        return None if whole(event.get("target")) else "target is not a whole number"
    if not isinstance(event.get("sku"), str):
''',
)
replace(
    "def main():\n    stock, rejected = replay(read(sys.argv[1]))\n",
    '''def circle(voids):
    """Return the circle of voids that holds the smallest id, sorted; None when there is none."""
    circles, seen = [], {}
    for start in voids:
        chain, at = [], start
        while at in voids and at not in seen:
            seen[at] = start
            chain.append(at)
            at = voids[at]
        if chain and seen.get(at) == start:
            circles.append(sorted(chain[chain.index(at) :]))
    return min(circles, default=None)


def correct(events):
    """Return the events that remain when all voids are carried out."""
    voids = {event["id"]: event["target"] for event in events if event["type"] == "void"}
    found = circle(voids)
    if found:
        complain("void cycle: " + " ".join(map(str, found)))
        sys.exit(3)
    by_target = {}
    for number, target in voids.items():
        by_target.setdefault(target, []).append(number)
    # Without circles the voids can be settled from the last of each chain on.
    gone, pending = {}, [event["id"] for event in events]
    while pending:
        number = pending[-1]
        unknown = [void for void in by_target.get(number, ()) if void not in gone]
        if unknown:
            pending += unknown
            continue
        gone[number] = any(not gone[void] for void in by_target.get(number, ()))
        pending.pop()
    return [event for event in events if event["type"] != "void" and not gone[event["id"]]]


def arguments(words):
    """Return the file and the time of --as-of."""
    words, limit = list(words), None
    if "--as-of" in words:
        place = words.index("--as-of")
        limit = words[place + 1] if place + 1 < len(words) else ""
        del words[place : place + 2]
        if not TIME.fullmatch(limit):
            sys.exit(complain(f"as-of: {limit!r} is not a time like 2025-01-03T10:00:00Z"))
    if len(words) != 1:
        sys.exit(complain("usage: ledger.py [--as-of TIME] EVENTS_FILE"))
    return words[0], limit


def main():
    path, limit = arguments(sys.argv[1:])
    events = [event for event in read(path) if limit is None or event["at"] <= limit]
    stock, rejected = replay(correct(events))
''',
)
path.write_text(text)
PY
python3 /app/ledger.py --as-of 2025-01-04T08:00:00Z /app/corrected.jsonl
