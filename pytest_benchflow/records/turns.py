"""Let threads that work on files take turns: each gives the interpreter up at every system call, and wants it back."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

LONGEST_WAIT_SEC = 0.02

_turn = threading.Lock()


def in_turn(work: Callable[..., T], *args: Any) -> T:
    """Do something while no other thread does; after 20 ms at once, so that what takes long holds up nobody."""
    ours = _turn.acquire(timeout=LONGEST_WAIT_SEC)
    try:
        return work(*args)
    finally:
        if ours:
            _turn.release()
