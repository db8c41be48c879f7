import tempfile
import unittest
from pathlib import Path

from pocketlog.store import Store


class StoreTest(unittest.TestCase):
    def test_round_trip(self):
        with tempfile.TemporaryDirectory() as directory:
            store = Store(Path(directory, "log"))
            store.add("2025-03-01T18:20", "planted the tomatoes")
            self.assertEqual(store.entries(), [("2025-03-01T18:20", "planted the tomatoes")])
