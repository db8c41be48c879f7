"""The command `pytest-benchflow reap`: remove the sandboxes that killed sessions of ours left."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_benchflow import registry
from pytest_benchflow.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pytest_benchflow.contracts import Backend

HELP = "remove the sandboxes that killed sessions left"
TEXT = """\
Remove the sandboxes that killed sessions left, wherever they are, and complete the ledgers of their jobs.

Only what bears exactly your owner's name is removed: BENCHFLOW_<SANDBOX>_OWNER, such as BENCHFLOW_DAYTONA_OWNER, else
a name of this user on this machine. Kept are those of live sessions, young ones, those that were active within 15
minutes or may be by their time limits, and those whose age is not known. Labels that fit nobody are warned about.
Exit codes: 0 fine; 1 one was not removed, or a kind did not answer or, if named, is not available; 2 wrong use.
"""
_AGE = re.compile(r"(\d+(?:\.\d+)?)(s|m|min|h|d)", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser."""
    parser.add_argument("--dry-run", action="store_true", help="tell what would be removed, and remove nothing")
    parser.add_argument(
        "--older-than",
        default="2h",
        metavar="AGE",
        help="least age of a sandbox whose session is not known to be dead, such as 90s, 30m or 1d (default: 2h)",
    )
    parser.add_argument(
        "--sandbox", action="append", metavar="NAME", help="look there only; repeat for more (default: everywhere)"
    )
    parser.add_argument("--ssh-host", action="append", metavar="[USER@]HOST[:PORT]", help="a host of the ssh sandbox")


def run(options: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Run the command, which says a line for each thing it finds, and return its exit code. Raises: UsageError."""
    import asyncio

    from pytest_benchflow.rollout.doctor import use_hosts

    older_than_sec = _age(options.older_than)
    use_hosts(options.ssh_host)
    named = tuple(dict.fromkeys(options.sandbox or ()))
    backends: dict[str, Backend] = {
        name: registry.load("sandboxes", name, "backend") for name in named or registry.names("sandboxes")
    }
    asked = []
    for name, backend in backends.items():
        if reason := backend.available():
            say(f"{name}: not looked at: {reason}")
        else:
            asked.append(backend)
    left = asyncio.run(_reap(asked, older_than_sec, say, dry_run=options.dry_run))
    return int(left or (bool(named) and len(asked) < len(backends)))


async def _reap(asked: list[Backend], older_than_sec: float, say: Callable[[str], None], *, dry_run: bool) -> bool:
    """Look through backends, and then after what ledgers tell; return whether something is left that should not be."""
    from pytest_benchflow.rollout.host import Host
    from pytest_benchflow.rollout.ledger import owed
    from pytest_benchflow.rollout.reaper import reap
    from pytest_benchflow.sandboxes._labels import owner_of

    failed = False
    for backend in asked:
        say(f"{backend.name}: owner {owner_of(backend.name)}" + (f", at {backend.place}" if backend.place else ""))
        async for done in reap([backend], older_than_sec=older_than_sec, dry_run=dry_run):
            for line in done.lines(dry_run=dry_run):
                say(line)
            failed = failed or bool(done.failed or done.silent)
        await backend.close()
    if dry_run:
        places = {(backend.name, backend.place) for backend in asked}
        for facts in owed():
            if (facts.get("backend"), facts.get("place")) not in places:
                say(f"{facts.get('backend')}: would look for {facts['sandbox']} at {facts.get('place') or 'its place'}")
        return failed
    # What is gone now is told to the ledgers, and what was made elsewhere is looked for there.
    async with Host():
        pass
    for facts in owed():
        failed = True
        place = f", made at {facts['place']}" if facts.get("place") else ""
        say(
            f"{facts.get('backend')}: NOT removed {facts['sandbox']}{place}: it is not known whether it is gone; "
            "to ask takes the address, the key and the owner that it was made with; if you know that it is, "
            f"removing {facts['known_from']} ends the question"
        )
    return failed


def _age(text: str) -> float:
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"--older-than is {text!r}; it takes a number and a unit (s, m, h or d), such as 2h")
    return float(found[1]) * _SECONDS[found[2]]
