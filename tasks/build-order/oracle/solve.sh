#!/bin/sh
set -eu
cat > /app/order.py <<'PY'
"""Print build targets in an order in which they can be built."""

import heapq
import re
import sys

NAME = re.compile(r"[A-Za-z0-9._/+-]+", re.ASCII)


class BadLine(Exception):
    """Carries the number of the line."""


def logical_lines(text):
    """Yield (number of the first physical line, text) with comments taken away and continued lines joined."""
    number, parts = None, []
    for count, line in enumerate(text.split("\n"), 1):
        line = line.split("#", 1)[0].rstrip(" \t\r")
        number = number or count
        if line.endswith("\\"):
            parts.append(line[:-1])
            continue
        yield number, " ".join([*parts, line])
        number, parts = None, []
    if parts:
        yield number, " ".join(parts)


def parse(text):
    """Return the needs of each target."""
    needs = {}
    for number, line in logical_lines(text):
        if not line.strip():
            continue
        left, colon, right = line.partition(":")
        targets, wanted = left.split(), right.split()
        if not colon or not targets or not all(NAME.fullmatch(name) for name in targets + wanted):
            raise BadLine(number)
        for target in targets:
            needs.setdefault(target, set()).update(wanted)
        for name in wanted:
            needs.setdefault(name, set())
    return needs


def reachable(needs, goals):
    """Return the part of the graph that the goals need."""
    found, pending = {}, list(goals)
    while pending:
        name = pending.pop()
        if name not in found:
            found[name] = needs[name]
            pending += needs[name]
    return found


def reverse(needs):
    needed_by = {name: [] for name in needs}
    for name, wanted in needs.items():
        for other in wanted:
            needed_by[other].append(name)
    return needed_by


def order(needs):
    """Return the order; it is shorter than the graph when there is a circle."""
    waiting = {name: len(wanted) for name, wanted in needs.items()}
    needed_by = reverse(needs)
    ready = [name for name, count in waiting.items() if not count]
    heapq.heapify(ready)
    done = []
    while ready:
        done.append(heapq.heappop(ready))
        for name in needed_by[done[-1]]:
            waiting[name] -= 1
            if not waiting[name]:
                heapq.heappush(ready, name)
    return done


def shortest_from(needs, needed_by, start, limit):
    """Return the smallest of the shortest circles through `start` and larger names, None if over `limit`."""
    # Distances to start, walked backwards, then the smallest name at each step forward.
    distance, layer = {}, [start]
    for steps in range(1, limit + 1):
        layer = {name for other in layer for name in needed_by[other] if name >= start and name not in distance}
        distance.update((name, steps) for name in layer)
        if start in distance or not layer:
            break
    if start not in distance:
        return None
    path = [start]
    for left in range(distance[start] - 1, 0, -1):
        path.append(min(name for name in needs[path[-1]] if distance.get(name) == left))
    return path


def circle(needs):
    needed_by = reverse(needs)
    best = None
    for start in sorted(needs):
        found = shortest_from(needs, needed_by, start, len(best) - 1 if best else len(needs))
        best = found or best
    return best


def main(path, *goals):
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    try:
        needs = parse(text)
    except BadLine as error:
        print(f"{path}:{error}: bad line", file=sys.stderr)
        return 2
    for goal in goals:
        if goal not in needs:
            print(f"unknown goal: {goal}", file=sys.stderr)
            return 4
    if goals:
        needs = reachable(needs, goals)
    done = order(needs)
    if len(done) < len(needs):
        names = circle(needs)
        print("circle: " + " -> ".join([*names, names[0]]), file=sys.stderr)
        return 3
    for name in done:
        print(name)
    return 0


sys.exit(main(*sys.argv[1:]))
PY
python3 /app/order.py /app/shop.deps
