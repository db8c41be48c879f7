"""Keep what a report shows of a rollout within bounds, and say of each text how much of it is left out."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

from pytest_benchflow.records.jsontext import dumps

if TYPE_CHECKING:
    from pathlib import Path

# Characters: of one text, and of all texts of a rollout.
LONGEST = 60_000
ALL = 6_000_000
# Where all is used up, each text still shows how it begins.
LEAST = 200

# A text, or {"text": its beginning, "more": characters left out}.
Text = str | dict[str, Any]


class Cut:
    """Cuts the texts of one rollout, which together may not be longer than a limit."""

    def __init__(self, limit: int = ALL) -> None:
        self._left = limit

    def text(self, value: Any) -> Text:
        """Return a text as it is, or its beginning and how much is left out; other values are written as JSON."""
        whole = value if isinstance(value, str) else json_text(value)
        room = max(LEAST, min(LONGEST, self._left))
        self._left -= min(len(whole), room)
        return whole if len(whole) <= room else {"text": whole[:room], "more": len(whole) - room}

    def file(self, path: Path) -> dict[str, Any] | None:
        """Return the beginning of a regular file, read through no link, with its size in bytes; None: it is none."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            data = stream.read(LONGEST)
        shown = self.text(data.decode(errors="replace"))
        whole = shown if isinstance(shown, str) else shown["text"]
        left_out = status.st_size - len(whole.encode(errors="surrogatepass"))
        return {"name": path.name, "size": status.st_size, "text": whole, "cut": left_out > 0 and len(data) > 0}


def json_text(value: Any) -> str:
    """Return a value as JSON text; one nested too deeply says so."""
    try:
        return dumps(value).decode()
    except (TypeError, RecursionError):
        return "(a value that cannot be written as JSON: it is nested too deeply)"
