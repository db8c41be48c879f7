"""The command `agents`: its arguments, and the lines it prints."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow import registry
from pytest_benchflow.catalog.directory import VARIABLE, declare_agents
from pytest_benchflow.catalog.load import find, shipped
from pytest_benchflow.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from pytest_benchflow.catalog.check import Checked

HELP = "list, show, export or check agents"
TEXT = f"""\
Look at agents: those of this package, and those of the directory that {VARIABLE} names, whose manifests
take the place of this package's of the same names. Without an action: list."""

# Of a description that is a page long, its beginning.
_WIDTH = 110
_ACTIONS = {
    "list": "List the agents that --benchflow-agent takes, with versions, aliases, wire format and whether installed.",
    "show": "Print an agent's manifest, and where it was read.",
    "export": "Write the contract part of this package's manifests to DIR/acp/NAME/manifest.toml.",
    "check": "Check manifests: by the contract's schema, by sh -n and shellcheck, and their names among each other.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their arguments."""
    parser.set_defaults(action="list")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action")
    made = {name: actions.add_parser(name, help=text, description=text) for name, text in _ACTIONS.items()}
    made["show"].add_argument("name", metavar="NAME", help="name or alias of an agent")
    made["export"].add_argument("path", type=Path, metavar="DIR", help="directory to make; it must hold nothing yet")
    made["export"].add_argument(
        "--force", action="store_true", help="write over what is there; files of other names stay"
    )
    made["check"].add_argument(
        "path", type=Path, metavar="DIR", help="directory that holds manifest.toml files at any depth, or a manifest"
    )
    made["check"].add_argument("--strict", action="store_true", help="exit with 1 for warnings too")


def run(options: argparse.Namespace, state: Callable[[str], str]) -> tuple[Sequence[str], int]:
    """Do what was asked for and return the lines to print and the exit code; `state` says whether one is installed.

    Raises: UsageError.
    """
    action = options.action or "list"
    if action == "export":
        from pytest_benchflow.catalog.write import export

        ours = [manifest for name in registry.shipped("agents") if (manifest := shipped(name))]
        return [str(file) for file in export(ours, options.path, force=options.force)], 0
    if action == "check":
        from pytest_benchflow.catalog.check import check

        checked = check(options.path)
        wrong = any(f.level == "error" or options.strict for f in checked.findings)
        return _checked_lines(checked), int(wrong)
    directory = declare_agents()
    if action == "show":
        return _shown_lines(options.name), 0
    lines = [line for name in registry.names("agents") for line in _listed_lines(name, state)]
    return [*lines, *([f"{VARIABLE}: {directory}"] if directory else [])], 0


def _listed_lines(name: str, state: Callable[[str], str]) -> list[str]:
    manifest = find(name)
    if manifest is None:
        return [f"{name}: {state(name)}"]
    # What is known of a version begins with a word for it, such as untested.
    others = [f"{name}@{version} ({known.partition(':')[0]})" for version, known in manifest.host.versions.items()]
    facts = [
        state(name),
        *([f"also {', '.join(others)}"] if others else []),
        *([f"aliases: {', '.join(manifest.aliases)}"] if manifest.aliases else []),
        f"speaks {manifest.spoken_protocol}",
        *([f"from {manifest.file}"] if name in registry.declared() else []),
    ]
    about = textwrap.shorten(manifest.description, _WIDTH, placeholder=" …") or "(no description)"
    return [f"{name}: {about}", f"  {' · '.join(facts)}"]


def _shown_lines(name: str) -> list[str]:
    base, at, _ = registry.canonical("agents", name).partition("@")
    manifest = find(base)
    if at and base in registry.names("agents"):
        registry.load("agents", name, "agent")(name)  # raises for a version that there is not
    if manifest is not None:
        return [f"# {manifest.file}", manifest.file.read_text("utf-8").rstrip("\n")]
    if base in registry.names("agents"):
        return [f"{base} is a program of a package, without a manifest"]
    raise UsageError(f"there is no agent {name!r}; there are: {', '.join(registry.names('agents'))}")


def _checked_lines(checked: Checked) -> list[str]:
    lines = [f"{finding.file}: {finding.level}: {finding.text}" for finding in checked.findings]
    count, wrong, odd = len(checked.files), checked.with_any("error"), checked.with_any("warning")
    warned = f", {odd} with warnings" if odd else ""
    lines.append(f"{count} manifest{'s' if count != 1 else ''}, {wrong} with errors{warned}")
    if "shellcheck" not in checked.tools:
        parsed = " and ".join(f"{shell} -n" for shell in checked.tools)
        lines.append(
            f"shellcheck is not installed: commands were checked by {parsed} alone; apt-get install shellcheck"
        )
    return lines
