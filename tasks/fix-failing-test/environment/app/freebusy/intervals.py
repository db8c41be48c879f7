"""Half-open intervals: (start, end) holds every minute m with start <= m < end; start < end."""


def merge(intervals):
    """Return the union of `intervals` as a new sorted list in which no two overlap or touch.

    The intervals may come in any order; the argument is left as it was.
    """
    intervals.sort()
    merged = []
    for start, end in intervals:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def subtract(whole, parts):
    """Return what is left of the interval `whole` without the minutes in `parts`, as a sorted list.

    `parts` may overlap, lie outside of `whole` or reach over its ends.
    """
    left = []
    position, stop = whole
    for start, end in merge(parts):
        if start > position:
            left.append((position, start))
        position = max(position, end)
    if position < stop:
        left.append((position, stop))
    return left
