"""Look the lock up in the public advisories, and say whether a finding came with a change of the lock.

    python .ci/audit.py requirements/ci.txt

Exit code 0: nothing known, or the advisory service cannot be reached (said plainly). 1: an advisory, an ignore that
has expired, or a package that could not be looked up. Ignores are in audit-ignores.toml.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

IGNORES = Path(__file__).with_name("audit-ignores.toml")
# What pip-audit's HTTP client says when there is nobody at the other end.
_UNREACHED = re.compile(
    r"ConnectionError|ConnectTimeout|ReadTimeout|ProxyError|Max retries exceeded|Connection (?:refused|reset|aborted)|"
    r"Could not connect|Temporary failure in name resolution|timed out|50[234] (?:Server|Service|Bad|Gateway)"
)


def read_ignores(path: Path, today: datetime.date) -> tuple[list[str], list[str]]:
    """Return the ids to ignore today, and one sentence per entry that is not valid any more."""
    ids: list[str] = []
    problems: list[str] = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("ignore", []):
        name, reason, expires = entry.get("id"), entry.get("reason"), entry.get("expires")
        if not name or not reason or not isinstance(expires, datetime.date):
            problems.append(f"{path.name}: {entry} needs an id, a reason and expires = YYYY-MM-DD")
        elif expires < today:
            problems.append(f"{path.name}: the ignore of {name} expired on {expires} ({reason}); look at it again")
        else:
            ids.append(name)
    return ids, problems


def lock_is_unchanged(lock: Path) -> bool | None:
    """Tell whether this change leaves the lock as it was; None when there is nothing to compare with."""
    base = os.environ.get("BENCHFLOW_CI_BASE") or "HEAD^"
    if os.environ.get("GITHUB_BASE_REF"):
        base = f"origin/{os.environ['GITHUB_BASE_REF']}"
    place = ["git", "-C", str(lock.absolute().parent)]
    if subprocess.run([*place, "cat-file", "-e", f"{base}^{{commit}}"], capture_output=True, check=False).returncode:
        return None
    return subprocess.run([*place, "diff", "--quiet", base, "--", lock.name], check=False).returncode == 0


def judge(report: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return one line per advisory, and the packages that were not looked up."""
    advisories: list[str] = []
    missed: list[str] = []
    for package in report["dependencies"]:
        if "skip_reason" in package:
            missed.append(package["name"])
        for found in package.get("vulns", []):
            fixed = ", ".join(found.get("fix_versions") or []) or "no release yet"
            advisories.append(f"{package['name']} {package['version']}: {found['id']} (fixed in: {fixed})")
    return advisories, missed


def ask(lock: Path, ids: list[str], service: list[str]) -> dict[str, Any] | str:
    """Return what one advisory service says, or one line on why it was not reached. Raises: SystemExit."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(lock), "--require-hashes", "--disable-pip"]
    command += ["--progress-spinner", "off", "--format", "json", "--vulnerability-service", *service]
    command += [part for name in ids for part in ("--ignore-vuln", name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
        missed, total = len(judge(report)[1]), len(report["dependencies"])
    except (ValueError, KeyError, TypeError):
        if _UNREACHED.search(done.stderr):
            return f"{service[0]}: cannot be reached"
        sys.exit(f"pip-audit failed with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    # A package index without the advisory interface answers "not found" for every package.
    return f"{service[0]}: knows none of the {total} packages" if total == missed else report


def main(lock: Path) -> int:
    """Run the audit and print what came of it."""
    ids, problems = read_ignores(IGNORES, datetime.datetime.now(datetime.UTC).date())
    print("".join(line + "\n" for line in problems), end="")
    # A mirror of the advisories, for networks that do not reach the public ones.
    mirror = os.environ.get("BENCHFLOW_OSV_URL")
    refusals = []
    for service in [["osv", "--osv-url", mirror]] if mirror else [["pypi"], ["osv"]]:
        report = ask(lock, ids, service)
        if not isinstance(report, str):
            break
        refusals.append(report)
    else:
        print(f"SKIPPED: no advisory service answered, so {lock.name} was not audited ({'; '.join(refusals)})")
        return 1 if problems else 0
    advisories, missed = judge(report)
    unchanged = lock_is_unchanged(lock)
    label = {True: "new advisory on an unchanged lock", False: "advisory on a changed lock", None: "advisory"}
    for line in advisories:
        print(f"{label[unchanged]}: {line}")
    for name in missed:
        print(f"not audited: {name} (the advisory service does not know it)")
    if not (advisories or missed or problems):
        print(f"no known advisory for {len(report['dependencies'])} locked packages ({len(ids)} ignored)")
    return 1 if advisories or missed or problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
