#!/bin/sh
set -eu
cat > /app/ledger.py <<'PY'
"""Replay warehouse events and print the stock."""

import json
import re
import sys

LEAST = {"receive": 1, "ship": 1, "count": 0, "move": 1}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


def whole(value):
    return isinstance(value, int) and not isinstance(value, bool)


def fault(event):
    """Return what is wrong with an event, None when it is valid."""
    if not isinstance(event, dict):
        return "not an object"
    if event.get("type") not in LEAST:
        return "unknown type"
    if not whole(event.get("id")):
        return "id is not a whole number"
    if not isinstance(event.get("at"), str) or not TIME.fullmatch(event["at"]):
        return "at is not a time"
    if not isinstance(event.get("sku"), str):
        return "sku is not a text"
    if not whole(event.get("qty")) or event["qty"] < LEAST[event["type"]]:
        return "qty is not a whole number that is large enough"
    if event["type"] == "move" and not isinstance(event.get("to"), str):
        return "to is not a text"
    return None


def read(path):
    """Return the events of a file in its order, without repetitions."""
    events = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                event = json.loads(line)
            except ValueError:
                sys.exit(complain(f"line {number}: not JSON"))
            wrong = fault(event)
            if wrong:
                sys.exit(complain(f"line {number}: {wrong}"))
            events.setdefault(event["id"], event)
    return list(events.values())


def complain(text):
    print(text, file=sys.stderr)
    return 2


def replay(events):
    """Return the stock by sku and the ids of rejected events."""
    stock, rejected = {}, []
    for event in sorted(events, key=lambda event: event["at"]):
        kind, sku, qty = event["type"], event["sku"], event["qty"]
        have = stock.get(sku, 0)
        if kind in ("ship", "move") and have < qty:
            rejected.append(event["id"])
            continue
        stock[sku] = {"receive": have + qty, "count": qty}.get(kind, have - qty)
        if kind == "move":
            stock[event["to"]] = stock.get(event["to"], 0) + qty
    return stock, rejected


def main():
    stock, rejected = replay(read(sys.argv[1]))
    for number in rejected:
        print(f"rejected {number}", file=sys.stderr)
    for sku in sorted(stock):
        print(sku, stock[sku])


if __name__ == "__main__":
    main()
PY
python3 /app/ledger.py /app/events.jsonl
