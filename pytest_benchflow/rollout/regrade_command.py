"""The command `pytest-benchflow regrade`: verify the kept workspaces of a job again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import BenchflowError, RecordError, UsageError
from pytest_benchflow.records.rundir import check_job

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pytest_benchflow.records.rollout import Rollout
    from pytest_benchflow.rollout.host import Host

HELP = "run the verifier again on kept workspaces"
TEXT = """\
Run the verifier of a job's rollouts again, on the workspaces that --benchflow-keep-sandbox kept. No agent runs, and no
model is called. A workspace is as the first verifier left it; each time a copy of it is verified. The task must be
the same by its digest, and its sandbox the local one, which alone keeps workspaces.

What happened in the run stays: a timeout stays a timeout, and a rollout that was unhealthy for another reason than its
verifier is not verified again. The first record is kept in regrades/1/first/ of the rollout, and each score beside it.
Exit codes: 0 each was verified again; 1 one was not, for the reason that is told; 2 wrong use, or nothing was kept."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser."""
    parser.add_argument("job", type=Path, metavar="JOB", help="directory of a job, such as jobs/ramp")
    parser.add_argument(
        "-k", dest="keyword", default="", metavar="EXPR", help="only rollouts whose name fits, as pytest's -k does"
    )


def run(options: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Run the command, which says a line for each rollout, and return its exit code. Raises: UsageError."""
    import asyncio

    from pytest_benchflow.records.job import rollouts_of, write_job_files
    from pytest_benchflow.rollout.place import take_job

    job: Path = options.job
    check_job(job)
    fits = _fits(options.keyword)
    with take_job(job, sys.argv):
        found = [each for each in rollouts_of(job) if each.dir.config.is_file() and fits(each.path.name)]
        if not found:
            raise UsageError(f"{job} has no rollout{f' that fits -k {options.keyword!r}' if options.keyword else ''}")
        if not any(_was_kept(each) for each in found):
            raise UsageError(
                f"{job}: no workspace of {len(found)} rollout{'s' if len(found) > 1 else ''} was kept, so that there "
                "is nothing to verify again; pass --benchflow-keep-sandbox to pytest the next time"
            )
        left = asyncio.run(_regrade(found, say))
        write_job_files(job)
    return int(left > 0)


async def _regrade(found: list[Rollout], say: Callable[[str], None]) -> int:
    """Verify rollouts again, one after the other; return how many were not."""
    from pytest_benchflow.rollout.host import Host

    left = 0
    async with Host() as host:
        for rollout in found:
            try:
                before, after = await _one(rollout, host)
                say(f"{rollout.path.name}: {_told(before)} -> {_told(after)}")
            except (BenchflowError, OSError) as error:
                left += 1
                say(f"{rollout.path.name}: not verified again: {error}")
    return left


async def _one(rollout: Rollout, host: Host) -> tuple[dict[str, Any], dict[str, Any]]:
    from pytest_benchflow.records.rollout import Rollout as Fresh
    from pytest_benchflow.rollout.place import held
    from pytest_benchflow.rollout.regrade import check_plain, finish_begun, prepare, regrade

    check_plain(rollout.dir)
    with held(rollout.dir, wait=False):
        if finish_begun(rollout.dir):
            rollout = Fresh(rollout.path)
        return await regrade(prepare(rollout), host)


def _was_kept(rollout: Rollout) -> bool:
    from pytest_benchflow.rollout.regrade import check_plain

    try:
        check_plain(rollout.dir)
        return bool(rollout.result.get("sandbox_kept"))
    except (RecordError, OSError):
        return False


def _told(result: dict[str, Any]) -> str:
    from pytest_benchflow.records.values import reward_of

    reward, category = reward_of(result), result.get("verdict_category")
    verdict = f"{result.get('verdict')} ({category})" if category else str(result.get("verdict"))
    return f"{verdict}, {'no reward' if reward is None else f'reward {reward:g}'}"


def _fits(keyword: str) -> Callable[[str], bool]:
    """Return what tells whether a name fits an expression of pytest's -k. Raises: UsageError."""
    from _pytest.mark.expression import Expression

    try:
        expression = Expression.compile(keyword) if keyword else None
    except SyntaxError as error:
        raise UsageError(
            f"-k {keyword!r} is no expression: {error.msg}; it takes words, and, or, not and brackets"
        ) from None

    def fits(name: str) -> bool:
        return expression is None or expression.evaluate(lambda word, /, **_: word.lower() in name.lower())

    return fits
