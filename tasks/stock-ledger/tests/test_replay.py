"""Check /app/ledger.py on events it has not seen."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path


def ledger(text, *options):
    """Return (exit status, stdout lines, stderr lines) of ledger.py on a file with this text."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "events.jsonl")
        path.write_text(text)
        command = [sys.executable, "/app/ledger.py", str(path), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, cwd=directory)
        return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


def lines(*events):
    """Return events (id, at as minutes of one day, type, sku, qty, to) as the text of a file."""
    names = ("id", "at", "type", "sku", "qty", "to")
    texts = []
    for values in events:
        event = dict(zip(names, values))
        event["at"] = f"2025-02-01T{event['at'] // 60:02}:{event['at'] % 60:02}:00Z"
        texts.append(json.dumps(event))
    return "\n".join(texts) + "\n"


class Replay(unittest.TestCase):
    def test_example(self):
        status, out, err = ledger(Path("/app/events.jsonl").read_text())
        self.assertEqual(out, ["bolt-m6 118", "nut-m6 100", "nut-m6-zinc 50"])
        self.assertEqual((status, err), (0, ["rejected 5", "rejected 7"]))

    def test_order_is_time_then_file(self):
        text = lines(
            (9, 60, "ship", "a", 5),
            (8, 59, "receive", "a", 5),
            (3, 60, "receive", "b", 1),
            (2, 60, "ship", "b", 1),
            (1, 60, "ship", "b", 1),
        )
        self.assertEqual(ledger(text), (0, ["a 0", "b 0"], ["rejected 1"]))

    def test_repetitions_are_ignored(self):
        text = lines((1, 50, "receive", "a", 5), (1, 10, "count", "z", 0), (2, 51, "receive", "a", 5))
        self.assertEqual(ledger(text), (0, ["a 10"], []))

    def test_rejected_as_a_whole(self):
        text = lines(
            (1, 1, "receive", "a", 5),
            (2, 2, "move", "a", 6, "b"),
            (3, 3, "move", "a", 5, "b"),
            (4, 4, "ship", "b", 6),
            (5, 5, "move", "b", 2, "b"),
        )
        self.assertEqual(ledger(text), (0, ["a 0", "b 5"], ["rejected 2", "rejected 4"]))

    def test_count_sets_the_stock(self):
        text = lines(
            (1, 1, "count", "a", 7),
            (2, 2, "ship", "a", 7),
            (3, 3, "count", "B", 0),
            (4, 4, "receive", "a", 2),
        )
        self.assertEqual(ledger(text), (0, ["B 0", "a 2"], []))

    def test_bad_lines(self):
        good = lines((1, 1, "receive", "a", 5))
        bad = {
            "not JSON": "{",
            "an array": "[1]",
            "unknown type": lines((2, 2, "lose", "a", 1)),
            "a fraction": lines((2, 2, "ship", "a", 1.5)),
            "a boolean": lines((2, 2, "ship", "a", True)),
            "a text": lines((2, 2, "ship", "a", "1")),
            "too small": lines((2, 2, "ship", "a", 0)),
            "a negative count": lines((2, 2, "count", "a", -1)),
            "no target sku": lines((2, 2, "move", "a", 1)),
            "no qty": lines((2, 2, "ship", "a")),
            "a bad repetition": lines((1, 2, "ship", "a", 0)),
            "a bad time": lines((2, 2, "ship", "a", 1)).replace("Z", "+00:00"),
        }
        for name, text in bad.items():
            status, out, err = ledger(good + "\n\n" + text.rstrip("\n") + "\n" + "{\n")
            self.assertEqual((status, out), (2, []), name)
            self.assertTrue(err and err[0].startswith("line 4:"), (name, err))

    def test_empty_and_other_fields(self):
        self.assertEqual(ledger("\n \n"), (0, [], []))
        text = lines((1, 1, "receive", "a", 5)).replace("{", '{"by": "ann", ')
        self.assertEqual(ledger(text), (0, ["a 5"], []))


if __name__ == "__main__":
    unittest.main()
