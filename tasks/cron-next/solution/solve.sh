#!/bin/sh
set -eu
cat > /app/cron_next.py <<'PY'
"""Print the next times of a cron expression."""

import calendar
import re
import sys
from datetime import datetime, timedelta

MONTHS = {name.upper(): number for number, name in enumerate(calendar.month_abbr) if name}
DAYS = {name: number for number, name in enumerate(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))}
FIELDS = (("minute", 0, 59, {}), ("hour", 0, 23, {}), ("day", 1, 31, {}), ("month", 1, 12, MONTHS), ("weekday", 0, 7, DAYS))
WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
# The calendar repeats after 400 years.
HORIZON = 400


class Bad(Exception):
    """Carries what is printed."""


def number(text, names, low, high):
    if text.upper() in names:
        return names[text.upper()]
    if not re.fullmatch(r"[0-9]+", text):
        raise Bad(f"{text!r} is not understood")
    if not low <= int(text) <= high:
        raise Bad(f"{text} is not in {low}-{high}")
    return int(text)


def item(text, low, high, names):
    """Return the values of one item of a list."""
    span, slash, every = text.partition("/")
    step = 1
    if slash:
        if not re.fullmatch(r"[0-9]+", every) or int(every) < 1:
            raise Bad(f"{every!r} is not a step")
        step = int(every)
    if span == "*":
        first, last = low, high
    else:
        start, dash, end = span.partition("-")
        first = number(start, names, low, high)
        last = number(end, names, low, high) if dash else high if slash else first
        if first > last:
            raise Bad(f"{span} runs backwards")
    return range(first, last + 1, step)


def parse(expression):
    """Return a set of values for each field; "L" may be among the days."""
    text = expression.strip()
    if text.startswith("@"):
        if text not in WORDS:
            raise Bad(f"expression: {text} is not known")
        text = WORDS[text]
    parts = text.split()
    if len(parts) != len(FIELDS):
        raise Bad(f"expression: {len(parts)} fields, where five belong")
    sets = []
    for part, (name, low, high, names) in zip(parts, FIELDS):
        values = set()
        for piece in part.split(","):
            if name == "day" and piece.upper() == "L":
                values.add("L")
                continue
            try:
                values.update(item(piece, low, high, names))
            except Bad as error:
                raise Bad(f"{name}: {error}") from None
        sets.append(values)
    sets[4] = {day % 7 for day in sets[4]}
    return sets, parts[2].startswith("*") or parts[4].startswith("*")


def fits(day, sets, both):
    last = calendar.monthrange(day.year, day.month)[1]
    in_month = day.day in sets[2] or ("L" in sets[2] and day.day == last)
    in_week = day.isoweekday() % 7 in sets[4]
    return (in_month and in_week) if both else (in_month or in_week)


def times(sets, both, start):
    """Yield the times after start, until the calendar must have repeated without any."""
    quiet_since = start.year
    day = start.replace(hour=0, minute=0)
    clock = [(hour, minute) for hour in sorted(sets[1]) for minute in sorted(sets[0])]
    while day.year - quiet_since <= HORIZON:
        if day.month not in sets[3]:
            day = (day.replace(day=28) + timedelta(days=4)).replace(day=1)
            continue
        if fits(day, sets, both):
            for hour, minute in clock:
                moment = day.replace(hour=hour, minute=minute)
                if moment > start:
                    quiet_since = day.year
                    yield moment
        day += timedelta(days=1)


def main(arguments):
    try:
        sets, both = parse(arguments[0])
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}", arguments[1]):
            raise Bad(f"start: {arguments[1]!r} is not like 2025-03-07T06:30")
        try:
            start = datetime.strptime(arguments[1], "%Y-%m-%dT%H:%M")
        except ValueError:
            raise Bad(f"start: {arguments[1]} is not a date") from None
        count = arguments[2] if len(arguments) > 2 else "1"
        if not re.fullmatch(r"[0-9]+", count) or int(count) < 1:
            raise Bad(f"count: {count!r} is not a whole number of at least 1")
    except Bad as error:
        print(error, file=sys.stderr)
        return 2
    lines = []
    for moment in times(sets, both, start):
        lines.append(moment.isoformat(timespec="minutes"))
        if len(lines) == int(count):
            break
    if not lines:
        print("never", file=sys.stderr)
        return 3
    print("\n".join(lines))
    return 0


sys.exit(main(sys.argv[1:]))
PY
python3 /app/cron_next.py "0 0 29 2 SUN" 2025-01-01T00:00 5
