"""Questions one asks of a calendar; a meeting is (start, end, title)."""

from .intervals import merge, subtract


def _times(meetings):
    return [(start, end) for start, end, _ in meetings]


def busy_minutes(meetings):
    """Return how many minutes are taken by at least one meeting."""
    return sum(end - start for start, end in merge(_times(meetings)))


def free_slots(meetings, day=(540, 1020), shortest=15):
    """Return the free intervals of `day` that last at least `shortest` minutes, in order."""
    return [(start, end) for start, end in subtract(day, _times(meetings)) if end - start >= shortest]


def conflicts(meetings):
    """Return the pairs of titles whose meetings overlap, each once, the earlier start first.

    Meetings that only touch do not overlap. Of two that start together the one that ends earlier comes first. The
    pairs are in the order of their first meeting, then of their second.
    """
    ordered = sorted(meetings)
    found = []
    for index, (_, end, title) in enumerate(ordered):
        for start, _, other in ordered[index + 1 :]:
            if start >= end:
                break
            found.append((title, other))
    return found


def first_common_slot(calendars, minutes, day=(540, 1020)):
    """Return the first interval of exactly `minutes` in `day` that is free in all calendars, None if there is none."""
    taken = []
    for meetings in calendars:
        taken += _times(meetings)
    for start, end in subtract(day, taken):
        if end - start > minutes:
            return (start, start + minutes)
    return None
