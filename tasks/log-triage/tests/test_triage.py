"""Check /app/triage.txt, and /app/triage.sh on logs it has not seen."""

import gzip
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

SHOWN = """\
errors 21
first 9fdc 2025-05-04T02:01:09.335Z
peak 2025-05-04T02:02 6
service checkout 12
service mailer 4
service session 4
service search 1
slowest 7f04 8890 checkout
cause java.net.ConnectException 12
cause java.net.SocketTimeoutException 4
cause java.sql.SQLException 4
"""


def record(time, level, service, request, duration, message="x", trace=()):
    """Return one record of 2025-06-01 as text."""
    head = f'2025-06-01T{time}Z {level} svc={service} req={request} dur={duration} msg="{message}"'
    return "\n".join((head, *trace)) + "\n"


def triage(files):
    """Return the lines triage.sh prints for a directory with these files, with no Python or Perl to be found."""
    with tempfile.TemporaryDirectory() as directory:
        logs, tools = Path(directory, "some logs"), Path(directory, "tools")
        logs.mkdir()
        tools.mkdir()
        for name in ("python3", "python", "perl"):
            (tools / name).write_text("#!/bin/sh\necho $0 must not be used >&2\nexit 99\n")
            (tools / name).chmod(0o755)
        for name, text in files.items():
            data = text.encode()
            (logs / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        env = {"PATH": f"{tools}:{os.environ['PATH']}"}
        command = ["sh", "/app/triage.sh", str(logs)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, cwd=directory, env=env)
        if done.returncode:
            raise AssertionError(f"triage.sh ended with {done.returncode}: {done.stderr[-500:]}")
        return done.stdout.splitlines()


class Triage(unittest.TestCase):
    maxDiff = None

    def test_shown_logs(self):
        self.assertEqual(Path("/app/triage.txt").read_text(), SHOWN)

    def test_level_not_message(self):
        log = (
            record("10:00:00.001", "INFO", "web", "a1", 5, "ERROR svc=web handled")
            + record("10:00:00.002", "WARN", "web", "a2", 6, "2025-06-01T10:00:00.000Z ERROR svc=db req=zz dur=9")
            + record("10:00:01.000", "ERROR", "db", "a3", 4, "gone")
        )
        expected = [
            "errors 1",
            "first a3 2025-06-01T10:00:01.000Z",
            "peak 2025-06-01T10:00 1",
            "service db 1",
            "slowest a2 6 web",
        ]
        self.assertEqual(triage({"app.log": log}), expected)

    def test_last_cause_of_each_record(self):
        trace = ["top.Failure: no", "\tat x.Y(Z.java:1)", "Caused by: a.First: one: two", "  Caused by: b.Second"]
        log = (
            record("11:00:00.000", "ERROR", "api", "c1", 1, trace=trace)
            + record("11:00:01.000", "WARN", "api", "c2", 1, trace=["Caused by: b.Second: only a warning"])
            + record("11:00:02.000", "ERROR", "api", "c3", 1, trace=["plain.Failure: no cause"])
            + record("11:00:03.000", "ERROR", "api", "c4", 1, trace=["Caused by: a.First"])
            + record("11:00:04.000", "ERROR", "api", "c5", 1, trace=["Caused by: Z.Third: here"])
        )
        causes = [line for line in triage({"app.log.3": log}) if line.startswith("cause")]
        self.assertEqual(causes, ["cause Z.Third 1", "cause a.First 1", "cause b.Second 1"])

    def test_copies_across_files_count_once(self):
        trace = ["Caused by: q.Down: 1"]
        one = record("12:00:01.000", "ERROR", "q", "d1", 10, trace=trace)
        two = record("12:00:02.000", "ERROR", "q", "d2", 10, trace=trace)
        three = record("12:00:02.500", "ERROR", "q", "d2", 10, trace=trace)
        files = {
            "app.log": two + three,
            "app.log.1": two + one,
            "app.log.12.gz": one + one,
            "app.log.old": three.replace("02.500", "03.000"),
        }
        expected = [
            "errors 3",
            "first d1 2025-06-01T12:00:01.000Z",
            "peak 2025-06-01T12:00 3",
            "service q 3",
            "slowest d1 10 q",
            "cause q.Down 3",
        ]
        self.assertEqual(triage(files), expected)

    def test_order_of_time_and_ties(self):
        log = (
            record("13:05:00.000", "ERROR", "b", "e5", 7)
            + record("13:01:00.000", "ERROR", "a", "e1", 900)
            + record("13:05:10.000", "ERROR", "b", "e6", 30)
            + record("13:02:00.000", "ERROR", "B", "e2", 1000)
            + record("13:01:30.000", "ERROR", "B", "e3", 99)
            + record("13:00:00.000", "DEBUG", "a", "e0", 5000)
        )
        older = record("13:01:45.000", "INFO", "a", "e4", 1000)
        expected = [
            "errors 5",
            "first e1 2025-06-01T13:01:00.000Z",
            "peak 2025-06-01T13:01 2",
            "service B 2",
            "service b 2",
            "service a 1",
            "slowest e4 1000 a",
        ]
        self.assertEqual(triage({"app.log": log, "app.log.2.gz": older}), expected)

    def test_quiet_night(self):
        log = record("14:00:00.000", "INFO", "a", "f1", 3) + record("14:00:01.000", "DEBUG", "a", "f2", 9)
        self.assertEqual(triage({"app.log": log}), ["errors 0", "slowest f1 3 a"])
        debug = record("14:00:01.000", "DEBUG", "a", "f2", 9)
        self.assertEqual(triage({"app.log.1.gz": debug}), ["errors 0"])


if __name__ == "__main__":
    unittest.main()
