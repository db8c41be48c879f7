"""Check voids and --as-of of /app/ledger.py; test_replay.py, which both steps share, holds what the first asked for."""

import json
import unittest
from pathlib import Path

from test_replay import ledger


def lines(*events):
    """Return events as the text of a file; a void is (id, at, target), any other (id, at, type, sku, qty)."""
    texts = []
    for number, at, *rest in events:
        event = {"id": number, "at": f"2025-02-01T00:{at:02}:00Z"}
        if len(rest) == 1:
            event.update(type="void", target=rest[0])
        else:
            event.update(zip(("type", "sku", "qty"), rest))
        texts.append(json.dumps(event))
    return "\n".join(texts) + "\n"


BASE = ((1, 1, "receive", "a", 10), (2, 2, "ship", "a", 8), (3, 3, "ship", "a", 5))


class Corrections(unittest.TestCase):
    def test_example(self):
        text = Path("/app/corrected.jsonl").read_text()
        self.assertEqual(ledger(text), (0, ["bolt-m6 50", "nut-m6 0"], ["rejected 3"]))
        before = ledger(text, "--as-of", "2025-01-05T10:59:59Z")
        self.assertEqual(before, (0, ["bolt-m6 120"], []))

    def test_void_lets_a_later_ship_succeed(self):
        self.assertEqual(ledger(lines(*BASE)), (0, ["a 2"], ["rejected 3"]))
        self.assertEqual(ledger(lines(*BASE, (4, 9, 2))), (0, ["a 5"], []))

    def test_void_of_a_receipt_rejects_what_followed(self):
        self.assertEqual(ledger(lines(*BASE, (4, 9, 1))), (0, [], ["rejected 2", "rejected 3"]))

    def test_void_before_its_target(self):
        self.assertEqual(ledger(lines((4, 0, 2), *BASE)), (0, ["a 5"], []))

    def test_chains(self):
        self.assertEqual(ledger(lines(*BASE, (4, 9, 2), (5, 9, 4))), (0, ["a 2"], ["rejected 3"]))
        self.assertEqual(ledger(lines(*BASE, (4, 9, 2), (5, 9, 4), (6, 9, 5))), (0, ["a 5"], []))
        self.assertEqual(ledger(lines((6, 0, 5), (5, 1, 4), (4, 2, 2), *BASE)), (0, ["a 5"], []))

    def test_one_void_in_effect_is_enough(self):
        text = lines(*BASE, (4, 9, 2), (5, 9, 4), (6, 9, 2))
        self.assertEqual(ledger(text), (0, ["a 5"], []))

    def test_long_chain(self):
        chain = [(number, 9, number - 1) for number in range(4, 3004)]
        self.assertEqual(ledger(lines(*BASE, *chain)), (0, ["a 2"], ["rejected 3"]))

    def test_unknown_target_and_repetition(self):
        self.assertEqual(ledger(lines(*BASE, (4, 9, 77))), (0, ["a 2"], ["rejected 3"]))
        self.assertEqual(ledger(lines(*BASE, (4, 9, 77), (4, 9, 2), (2, 9, 3))), (0, ["a 2"], ["rejected 3"]))

    def test_circles(self):
        self.assertEqual(ledger(lines(*BASE, (4, 9, 4))), (3, [], ["void cycle: 4"]))
        text = lines(*BASE, (20, 9, 21), (21, 9, 20), (4, 9, 12), (12, 9, 9), (9, 9, 12))
        self.assertEqual(ledger(text), (3, [], ["void cycle: 9 12"]))

    def test_as_of(self):
        text = lines(*BASE, (4, 9, 2), (5, 11, 4), (6, 12, 6))
        self.assertEqual(ledger(text, "--as-of", "2025-02-01T00:02:00Z"), (0, ["a 2"], []))
        self.assertEqual(ledger(text, "--as-of", "2025-02-01T00:08:59Z"), (0, ["a 2"], ["rejected 3"]))
        self.assertEqual(ledger(text, "--as-of", "2025-02-01T00:09:00Z"), (0, ["a 5"], []))
        self.assertEqual(ledger(text, "--as-of", "2025-02-01T00:11:30Z"), (0, ["a 2"], ["rejected 3"]))
        self.assertEqual(ledger(text, "--as-of", "2025-02-01T00:12:00Z")[0], 3)

    def test_left_out_lines_are_still_ids(self):
        text = lines((7, 30, "receive", "a", 4), (7, 1, "receive", "a", 9), (8, 1, "receive", "b", 1))
        self.assertEqual(ledger(text, "--as-of", "2025-02-01T00:02:00Z"), (0, ["b 1"], []))

    def test_bad_voids_and_times(self):
        for target in ("2", None, 1.0, True):
            status, out, err = ledger(lines(*BASE, (4, 9, target)), "--as-of", "2025-02-01T00:02:00Z")
            self.assertEqual((status, out), (2, []), target)
            self.assertTrue(err and err[0].startswith("line 4:"), (target, err))
        status, out, err = ledger(lines(*BASE), "--as-of", "yesterday")
        self.assertEqual((status, out), (2, []))
        self.assertTrue(err and err[0].startswith("as-of:"), err)


if __name__ == "__main__":
    unittest.main()
