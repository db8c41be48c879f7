"""Check /app/freebusy against a count of single minutes, and that its own tests are whole and pass."""

import hashlib
import random
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.append("/app")
sys.dont_write_bytecode = True

SHIPPED = {
    "/app/tests/__init__.py": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "/app/tests/test_agenda.py": "dd252daec3d64762937cf3f3887b5cca50679610d22cf8d7c580884f05bda024",
}


def intervals(rng, count, low=0, high=120):
    """Return random intervals between `low` and `high`."""
    return [tuple(sorted(rng.sample(range(low, high + 1), 2))) for _ in range(count)]


def minutes(parts):
    """Return the set of minutes in some intervals."""
    return {minute for start, end in parts for minute in range(start, end)}


def runs(taken):
    """Return a set of minutes as sorted intervals that do not touch."""
    found = []
    for minute in sorted(taken):
        if found and found[-1][1] == minute:
            found[-1] = (found[-1][0], minute + 1)
        else:
            found.append((minute, minute + 1))
    return found


class OwnTests(unittest.TestCase):
    def test_are_unchanged(self):
        for path, digest in SHIPPED.items():
            self.assertEqual(hashlib.sha256(Path(path).read_bytes()).hexdigest(), digest, f"{path} was changed")

    def test_pass(self):
        command = [sys.executable, "-B", "-m", "unittest", "discover", "-s", "tests", "-t", "."]
        done = subprocess.run(command, cwd="/app", capture_output=True, text=True, timeout=30)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Ran 6 tests", done.stderr)


class Package(unittest.TestCase):
    def setUp(self):
        # Here, so that a package that cannot be imported is a failed test and not a broken verifier.
        import freebusy

        self.freebusy = freebusy
        self.rng = random.Random(20250314)

    def test_merge(self):
        for _ in range(300):
            parts = intervals(self.rng, self.rng.randrange(8))
            self.assertEqual(self.freebusy.merge(list(parts)), runs(minutes(parts)), parts)

    def test_arguments_are_left_alone(self):
        parts = [(50, 60), (10, 20), (15, 30)]
        self.freebusy.merge(parts)
        self.freebusy.subtract((0, 100), parts)
        self.assertEqual(parts, [(50, 60), (10, 20), (15, 30)])
        self.assertEqual(self.freebusy.merge(((5, 6), (1, 2))), [(1, 2), (5, 6)])

    def test_subtract(self):
        for _ in range(300):
            parts = intervals(self.rng, self.rng.randrange(6))
            whole = tuple(sorted(self.rng.sample(range(30, 90), 2)))
            expected = runs(minutes([whole]) - minutes(parts))
            self.assertEqual(self.freebusy.subtract(whole, list(parts)), expected, (whole, parts))

    def test_busy_minutes(self):
        meetings = [(0, 100, "a"), (10, 20, "b"), (90, 95, "c"), (99, 101, "d")]
        self.assertEqual(self.freebusy.busy_minutes(meetings), 101)

    def test_free_slots_end_with_the_day(self):
        meetings = [(480, 570, "early"), (1080, 1100, "late")]
        self.assertEqual(self.freebusy.free_slots(meetings), [(570, 1020)])
        self.assertEqual(self.freebusy.free_slots([(540, 700, "x"), (715, 1020, "y")]), [(700, 715)])
        self.assertEqual(self.freebusy.free_slots([(540, 700, "x"), (714, 1020, "y")]), [])

    def test_conflicts(self):
        meetings = [(30, 40, "d"), (0, 60, "b"), (10, 20, "c"), (0, 50, "a"), (60, 70, "e")]
        expected = [("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d")]
        self.assertEqual(self.freebusy.conflicts(meetings), expected)

    def test_first_common_slot(self):
        ann, bob = [(540, 960, "workshop"), (600, 630, "standup")], [(990, 1100, "train")]
        self.assertEqual(self.freebusy.first_common_slot([ann, bob], 30), (960, 990))
        self.assertEqual(self.freebusy.first_common_slot([ann, bob], 20), (960, 980))
        self.assertIsNone(self.freebusy.first_common_slot([ann, bob], 31))
        self.assertIsNone(self.freebusy.first_common_slot([[(1200, 1210, "late")]], 481))


if __name__ == "__main__":
    unittest.main()
