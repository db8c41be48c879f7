"""Run /app/cron_next.py on cases of four kinds and write how much of each came out right as reward.json."""

import json
import subprocess
import sys
import time
from pathlib import Path

LOGS = Path("/logs/verifier")

# kind: (expression, start, count or None, expected lines; or an exit status and how standard error begins)
CASES = {
    "syntax": [
        ("* * * * *", "2025-12-31T23:59", None, ["2026-01-01T00:00"]),
        ("*/25 3 * * *", "2025-05-05T03:00", 3, ["2025-05-05T03:25", "2025-05-05T03:50", "2025-05-06T03:00"]),
        ("5,35 8-10/2 * * *", "2025-05-05T08:05", 3, ["2025-05-05T08:35", "2025-05-05T10:05", "2025-05-05T10:35"]),
        ("52/4 0 * * *", "2025-05-05T00:00", 3, ["2025-05-05T00:52", "2025-05-05T00:56", "2025-05-06T00:52"]),
        ("0 0 1 jan,Jul *", "2025-02-01T00:00", 2, ["2025-07-01T00:00", "2026-01-01T00:00"]),
        ("0 0 1 OCT-dec *", "2025-10-01T00:00", 3, ["2025-11-01T00:00", "2025-12-01T00:00", "2026-10-01T00:00"]),
        ("0 9 * * tue-THU", "2025-03-06T09:00", 2, ["2025-03-11T09:00", "2025-03-12T09:00"]),
        ("0 9 * * 7", "2025-03-05T00:00", None, ["2025-03-09T09:00"]),
        ("0 9 * * 5-7", "2025-03-07T10:00", 3, ["2025-03-08T09:00", "2025-03-09T09:00", "2025-03-14T09:00"]),
        ("0 9 * * 6/1", "2025-03-07T10:00", 3, ["2025-03-08T09:00", "2025-03-09T09:00", "2025-03-15T09:00"]),
        ("  0   9 1 * *  ", "2025-03-07T10:00", None, ["2025-04-01T09:00"]),
        ("59 23 31 12 *", "2025-12-31T23:58", 2, ["2025-12-31T23:59", "2026-12-31T23:59"]),
        ("0,0,0-10/5 1 * * *", "2025-03-07T00:00", 3, ["2025-03-07T01:00", "2025-03-07T01:05", "2025-03-07T01:10"]),
        ("7/70 2 * * *", "2025-03-07T02:07", None, ["2025-03-08T02:07"]),
        ("@hourly", "2025-03-07T02:00", 2, ["2025-03-07T03:00", "2025-03-07T04:00"]),
        ("@weekly", "2025-03-07T02:00", 2, ["2025-03-09T00:00", "2025-03-16T00:00"]),
        ("@yearly", "2025-01-01T00:00", None, ["2026-01-01T00:00"]),
    ],
    "calendar": [
        ("0 0 13 * FRI", "2025-06-09T00:00", 3, ["2025-06-13T00:00", "2025-06-20T00:00", "2025-06-27T00:00"]),
        ("0 0 1 * MON", "2025-06-24T00:00", 3, ["2025-06-30T00:00", "2025-07-01T00:00", "2025-07-07T00:00"]),
        ("0 0 */10 * MON", "2025-06-01T00:00", 2, ["2025-07-21T00:00", "2025-08-11T00:00"]),
        ("0 0 13 * */5", "2025-06-01T00:00", 2, ["2025-06-13T00:00", "2025-07-13T00:00"]),
        ("0 0 1-7 * *", "2025-06-07T00:00", 2, ["2025-07-01T00:00", "2025-07-02T00:00"]),
        ("0 0 31 * *", "2025-01-31T00:00", 3, ["2025-03-31T00:00", "2025-05-31T00:00", "2025-07-31T00:00"]),
        ("0 0 L * *", "2025-01-31T00:00", 3, ["2025-02-28T00:00", "2025-03-31T00:00", "2025-04-30T00:00"]),
        ("0 6 15,L 2 *", "2027-12-01T00:00", 3, ["2028-02-15T06:00", "2028-02-29T06:00", "2029-02-15T06:00"]),
        ("0 0 L * SUN", "2025-11-24T00:00", 3, ["2025-11-30T00:00", "2025-12-07T00:00", "2025-12-14T00:00"]),
        ("30 6 * * MON-FRI", "2025-03-07T06:29", 2, ["2025-03-07T06:30", "2025-03-10T06:30"]),
        ("0 0 * 2 *", "2024-02-28T00:00", 2, ["2024-02-29T00:00", "2025-02-01T00:00"]),
        ("15 14 1 * *", "2025-12-01T14:15", None, ["2026-01-01T14:15"]),
    ],
    "far": [
        ("0 0 29 2 *", "2096-02-29T00:00", 2, ["2104-02-29T00:00", "2108-02-29T00:00"]),
        ("0 0 29 FEB */7", "2025-01-01T00:00", 2, ["2032-02-29T00:00", "2060-02-29T00:00"]),
        ("59 23 L FEB */6", "2025-03-01T00:00", 1, ["2026-02-28T23:59"]),
        ("0 0 30 2 SAT", "2025-01-30T00:00", 2, ["2025-02-01T00:00", "2025-02-08T00:00"]),
        ("0 0 30 2 *", "2025-01-01T00:00", None, (3, "never")),
        ("0 0 31 4,6,9,11 *", "2025-01-01T00:00", None, (3, "never")),
        ("7 7 29-31 2/12 *", "2097-01-01T00:00", 1, ["2104-02-29T07:07"]),
    ],
    "errors": [
        ("60 * * * *", "2025-01-01T00:00", None, (2, "minute:")),
        ("* 24 * * *", "2025-01-01T00:00", None, (2, "hour:")),
        ("* * 0 * *", "2025-01-01T00:00", None, (2, "day:")),
        ("* * * 13 *", "2025-01-01T00:00", None, (2, "month:")),
        ("* * * * 8", "2025-01-01T00:00", None, (2, "weekday:")),
        ("* * * FEBR *", "2025-01-01T00:00", None, (2, "month:")),
        ("* * * * L", "2025-01-01T00:00", None, (2, "weekday:")),
        ("30-10 * * * *", "2025-01-01T00:00", None, (2, "minute:")),
        ("* * * * FRI-MON", "2025-01-01T00:00", None, (2, "weekday:")),
        ("*/0 * * * *", "2025-01-01T00:00", None, (2, "minute:")),
        ("1,,2 * * * *", "2025-01-01T00:00", None, (2, "minute:")),
        ("-5 * * * *", "2025-01-01T00:00", None, (2, "minute:")),
        ("* 1-2-3 x * *", "2025-01-01T00:00", None, (2, "hour:")),
        ("* 1/2/3 * * *", "2025-01-01T00:00", None, (2, "hour:")),
        ("* * JAN * *", "2025-01-01T00:00", None, (2, "day:")),
        ("* * * *", "2025-01-01T00:00", None, (2, "expression:")),
        ("* * * * * *", "2025-01-01T00:00", None, (2, "expression:")),
        ("@often", "2025-01-01T00:00", None, (2, "expression:")),
        ("", "2025-01-01T00:00", None, (2, "expression:")),
        ("* * * * *", "2025-02-29T00:00", None, (2, "start:")),
        ("* * * * *", "2025-1-1T00:00", None, (2, "start:")),
        ("* * * * *", "2025-01-01T00:00:00", None, (2, "start:")),
        ("* * * * *", "2025-01-01 00:00", 0, (2, "start:")),
        ("* * * * *", "2025-01-01T00:00", 0, (2, "count:")),
        ("* * * * *", "2025-01-01T00:00", "two", (2, "count:")),
        ("61 * * * *", "never", 0, (2, "minute:")),
    ],
}
# Every hour of January and February.
DAYS = [f"2025-01-{day:02}" for day in range(1, 32)] + [f"2025-02-{day:02}" for day in range(1, 29)]
HOURS = [f"{day}T{hour:02}:00" for day in DAYS for hour in range(24)]
CASES["far"].append(("0 * * * *", "2024-12-31T23:59", len(HOURS), HOURS))
# A program that never answers must not use up the verifier's own time: after so many, cases fail without being run.
MAX_LATE = 10


def run(expression, start, count):
    """Return (exit status, stdout lines, stderr), None when the program took too long."""
    command = [sys.executable, "/app/cron_next.py", expression, start, *([] if count is None else [str(count)])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10)
    except subprocess.TimeoutExpired:
        return None
    return done.returncode, done.stdout.splitlines(), done.stderr


def right(found, expected):
    if found is None:
        return False
    status, out, err = found
    if isinstance(expected, list):
        return (status, out) == (0, expected)
    return status == expected[0] and not out and len(err.splitlines()) == 1 and err.startswith(expected[1])


def main():
    rewards, tests, start, late = {}, [], time.time(), 0
    for kind, cases in CASES.items():
        passed = 0
        for expression, begin, count, expected in cases:
            began = time.monotonic()
            found = run(expression, begin, count) if late < MAX_LATE else None
            late += found is None
            good = right(found, expected)
            passed += good
            name = f"{kind}: {expression!r} {begin} {count or ''}".rstrip()
            duration = round((time.monotonic() - began) * 1000)
            tests.append({"name": name, "status": "passed" if good else "failed", "duration": duration})
            if not good:
                tests[-1]["message"] = f"got {found!r}"[:500]
            print("ok" if good else "FAILED", name)
        rewards[kind] = round(passed / len(cases), 4)
        print(f"{kind}: {passed} of {len(cases)} cases passed")
    rewards = {"reward": round(sum(rewards.values()) / len(rewards), 4), **rewards}
    failed = sum(test["status"] == "failed" for test in tests)
    summary = {"tests": len(tests), "passed": len(tests) - failed, "failed": failed}
    summary.update(pending=0, skipped=0, other=0, start=int(start * 1000), stop=int(time.time() * 1000))
    report = {"results": {"tool": {"name": "cases.py"}, "summary": summary, "tests": tests}}
    (LOGS / "ctrf.json").write_text(json.dumps(report, indent=1))
    (LOGS / "reward.json").write_text(json.dumps(rewards))
    return 1 if failed else 0


sys.exit(main())
