"""Check /app/order.py on files it has not seen, and write the reward where BENCHFLOW_REWARD_TEXT says."""

import os
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path


def order(text, *goals):
    """Return (exit status, stdout lines, stderr lines) of order.py on x.deps with this text."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "x.deps").write_bytes(text.encode())
        command = [sys.executable, "/app/order.py", "x.deps", *goals]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, cwd=directory)
        return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


class Order(unittest.TestCase):
    maxDiff = None

    def good(self, text, expected, *goals):
        self.assertEqual(order(text, *goals), (0, expected.split(), []))

    def test_shop(self):
        text = Path("/app/shop.deps").read_text()
        expected = (
            "config.yml lib/core schema.sql third_party/sqlite+json lib/db tools/minify web/assets web/server worker "
            "shop docs"
        )
        self.good(text, expected)
        self.good(text, "tools/minify web/assets", "web/assets")

    def test_smallest_ready_target_is_next(self):
        self.good("z: b\nb:\na: z\nc:\n", "b c z a")
        self.good("B: a\na:\nC:\n_: \n", "C _ a B")
        self.good("x9: x10\nx1:\n", "x1 x10 x9")

    def test_lines_add_up(self):
        self.good("a b: c\nb: d\na: e e\n", "c d b e a")

    def test_comments_and_continued_lines(self):
        self.good("a: b \\\n  c # and \\\nd: a\n\t\n#\n", "b c a d")
        self.good("a: b \\  \n\\\n  c\n", "b c a")
        self.good("a: b#c\n", "b a")
        self.good("a: b\\\nc\n", "b c a")
        self.good("a \\\n b: c", "c a b")
        self.good("a: b \\", "b a")

    def test_empty(self):
        self.good("# nothing\n\n", "")

    def test_goals(self):
        text = "a: b\nb: c\nd: e\nx: y\ny: x\n"
        self.good(text, "c b e d", "b", "d")
        self.good(text, "c b", "b", "c", "b")
        self.assertEqual(order(text, "a", "zz", "qq"), (4, [], ["unknown goal: zz"]))
        self.assertEqual(order(text, "x", "a"), (3, [], ["circle: x -> y -> x"]))

    def test_bad_lines(self):
        bad = {
            "no colon": ("a: b\na b\n", 2),
            "second colon": ("a: b: c\n", 1),
            "no target": ("\n\n : b\n", 3),
            "other characters": ("a: b\n\nc: d \\\n e,f\n", 3),
            "umlaut": ("a: \u00fc\n", 1),
            "after a continued line": ("a: b \\\n c\n\nd\n", 4),
        }
        for name, (text, line) in bad.items():
            self.assertEqual(order(text), (2, [], [f"x.deps:{line}: bad line"]), name)
        self.assertEqual(order("a:\nb\n", "a")[0], 2)

    def test_shortest_circle(self):
        self.assertEqual(order("a: b\nb: c\nc: d\nd: a c\n"), (3, [], ["circle: c -> d -> c"]))
        self.assertEqual(order("a: b\nb: a\nq: q\n"), (3, [], ["circle: q -> q"]))
        self.assertEqual(order("c: b\nb: a\na: c\nz: c\n"), (3, [], ["circle: a -> c -> b -> a"]))

    def test_smallest_of_the_shortest_circles(self):
        self.assertEqual(order("m: n\nn: m\nb: k\nk: b\n"), (3, [], ["circle: b -> k -> b"]))
        text = "a: d c\nc: x\nd: b\nx: a\nb: a\n"
        self.assertEqual(order(text), (3, [], ["circle: a -> c -> x -> a"]))
        self.assertEqual(order("a: c B\nB: a\nc: a\n"), (3, [], ["circle: B -> a -> B"]))

    def test_long_chains_do_not_need_deep_recursion(self):
        chain = "".join(f"n{number:05}: n{number + 1:05}\n" for number in range(3000))
        expected = [f"n{number:05}" for number in range(3000, -1, -1)]
        self.assertEqual(order(chain), (0, expected, []))
        status, out, err = order(chain + "n03000: n02998\n")
        self.assertEqual((status, out, err), (3, [], ["circle: n02998 -> n02999 -> n03000 -> n02998"]))

    def test_random_graphs_are_ordered(self):
        rng = random.Random(11)
        names = [f"t{number}" for number in range(40)]
        rng.shuffle(names)
        needs = {name: rng.sample(names[:index], min(index, rng.randrange(4))) for index, name in enumerate(names)}
        expected, left = [], dict(needs)
        while left:
            name = min(name for name, wanted in left.items() if not set(wanted) & left.keys())
            expected.append(name)
            del left[name]
        lines = [f"{name}: {' '.join(wanted)}\n" for name, wanted in needs.items()]
        rng.shuffle(lines)
        self.assertEqual(order("".join(lines)), (0, expected, []))


if __name__ == "__main__":
    outcome = unittest.main(exit=False, verbosity=2).result
    Path(os.environ["BENCHFLOW_REWARD_JSON"]).unlink(missing_ok=True)
    Path(os.environ["BENCHFLOW_REWARD_TEXT"]).write_text("1\n" if outcome.wasSuccessful() else "0\n")
