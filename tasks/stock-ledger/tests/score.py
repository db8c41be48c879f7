"""Run the unittest files beside this one and write reward.txt and ctrf.json to /logs/verifier.

Tests that cannot be loaded, or none at all, leave no reward: that is a broken verifier, not a failed solution.
"""

import json
import sys
import time
import unittest
from pathlib import Path

LOGS = Path("/logs/verifier")


class Result(unittest.TextTestResult):
    """Keeps one CTRF entry a test."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.entries = []

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def stopTest(self, test):
        super().stopTest(test)
        broken = [text for case, text in self.failures + self.errors if getattr(case, "test_case", case) is test]
        entry = {
            "name": test.id(),
            "status": "failed" if broken else "passed",
            "duration": round((time.monotonic() - self.began) * 1000),
        }
        if broken:
            entry["message"] = broken[0][-2000:]
        self.entries.append(entry)


def main():
    loader = unittest.TestLoader()
    suite = loader.discover(str(Path(__file__).resolve().parent))
    if loader.errors or not suite.countTestCases():
        print("\n".join(loader.errors) or "no tests were found", file=sys.stderr)
        return 2
    start = time.time()
    result = unittest.TextTestRunner(resultclass=Result, verbosity=2).run(suite)
    counts = {name: sum(entry["status"] == name for entry in result.entries) for name in ("passed", "failed")}
    summary = {"tests": len(result.entries), **counts, "pending": 0, "skipped": 0, "other": 0}
    summary.update(start=int(start * 1000), stop=int(time.time() * 1000))
    ctrf = {"results": {"tool": {"name": "unittest"}, "summary": summary, "tests": result.entries}}
    (LOGS / "ctrf.json").write_text(json.dumps(ctrf, indent=1))
    # A program under test may have left one, and it would win over reward.txt.
    (LOGS / "reward.json").unlink(missing_ok=True)
    (LOGS / "reward.txt").write_text("1\n" if result.wasSuccessful() else "0\n")
    return 0 if result.wasSuccessful() else 1


sys.exit(main())
