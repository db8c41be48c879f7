"""Free and busy times; a time is a whole number of minutes since midnight."""

from .agenda import busy_minutes, conflicts, first_common_slot, free_slots
from .intervals import merge, subtract

__all__ = ["busy_minutes", "conflicts", "first_common_slot", "free_slots", "merge", "subtract"]
