import unittest

from freebusy import busy_minutes, conflicts, first_common_slot, free_slots, merge


class Agenda(unittest.TestCase):
    def test_merge_joins_touching_intervals(self):
        self.assertEqual(merge([(600, 660), (660, 690), (720, 750)]), [(600, 690), (720, 750)])

    def test_busy_minutes_counts_overlaps_once(self):
        meetings = [(600, 660, "review"), (630, 720, "planning")]
        self.assertEqual(busy_minutes(meetings), 120)

    def test_free_slots_of_a_quiet_day(self):
        meetings = [(600, 660, "review"), (900, 910, "call")]
        self.assertEqual(free_slots(meetings), [(540, 600), (660, 900), (910, 1020)])

    def test_no_free_slot_inside_a_long_workshop(self):
        meetings = [(540, 960, "workshop"), (600, 630, "standup")]
        self.assertEqual(free_slots(meetings), [(960, 1020)])

    def test_conflicts_names_both_meetings(self):
        meetings = [(600, 660, "review"), (630, 720, "planning"), (720, 730, "call")]
        self.assertEqual(conflicts(meetings), [("review", "planning")])

    def test_first_common_slot(self):
        ann = [(540, 600, "mail"), (660, 720, "lunch")]
        bob = [(600, 630, "standup")]
        self.assertEqual(first_common_slot([ann, bob], 20), (630, 650))


if __name__ == "__main__":
    unittest.main()
