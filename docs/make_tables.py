"""Write what follows from the code: options into README.md, checks into checks.md and the list of shipped checks, and
capabilities into conformance.md.

    python docs/make_tables.py

tests/docs/test_links.py fails when a table is not what this writes.
"""

from __future__ import annotations

import re
from pathlib import Path

from pytest_benchflow.checks._check import all_checks
from pytest_benchflow.rollout.capabilities import CAPABILITIES
from pytest_benchflow.settings import OPTIONS

ROOT = Path(__file__).parents[1]
SHIPPED = ROOT / "pytest_benchflow" / "checks" / "_baseline.py"


def options_table() -> str:
    """Return every option with its help."""
    rows = ["| option | |", "|---|---|"]
    for option in OPTIONS:
        value = "\\|".join(option.choices) if option.choices else (option.metavar or "").replace("|", "\\|")
        shown = option.flag + (f"={value}" if value and option.kind != "bool" else "")
        rows.append(f"| `{shown}` | {option.help.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def checks_table() -> str:
    """Return every shipped check with its category and its claim; a warning is marked as such."""
    rows = ["| check | category | claim |", "|---|---|---|"]
    for name, check in sorted(all_checks().items(), key=lambda item: (item[1].category, item[0])):
        severity = " (warning)" if check.severity == "warning" else ""
        rows.append(f"| `{name}` | {check.category}{severity} | {check.claim} |")
    return "\n".join(rows)


def capabilities_table() -> str:
    """Return every capability that a conformance check looks at, and whether it is required."""
    rows = ["| capability | scenario | the agent | |", "|---|---|---|---|"]
    for each in CAPABILITIES:
        need = "required" if each.required else "reported"
        rows.append(f"| `{each.name}` | `{each.scenario}` | {each.claim} | {need} |")
    return "\n".join(rows)


def baseline() -> str:
    """Return the names of the shipped checks as Python text."""
    names = "".join(f'    "{name}",\n' for name in sorted(all_checks()))
    return f"SHIPPED = (\n{names})"


def write(page: Path, mark: str, table: str) -> None:
    """Put a table between its two marks."""
    text = page.read_text(encoding="utf-8")
    between = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", re.DOTALL)
    page.write_text(between.sub(lambda match: f"{match[1]}\n{table}\n\n{match[2]}", text), encoding="utf-8")


if __name__ == "__main__":
    write(ROOT / "README.md", "options", options_table())
    write(ROOT / "docs" / "checks.md", "checks", checks_table())
    write(ROOT / "docs" / "conformance.md", "capabilities", capabilities_table())
    SHIPPED.write_text(SHIPPED.read_text(encoding="utf-8").partition("SHIPPED = (")[0] + baseline() + "\n", "utf-8")
