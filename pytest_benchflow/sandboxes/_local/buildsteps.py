"""Do one step of a build in a sandbox: what needs programs of the image is done by them."""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._context import Ignore, read_ignore
from pytest_benchflow.sandboxes._host import public_sources
from pytest_benchflow.sandboxes._local.accounts import find_owner
from pytest_benchflow.sandboxes._local.image import Placed, Run, place_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_benchflow.sandboxes.local import LocalSandbox
    from pytest_benchflow.tasks.task import Task

# Where the stages that files are copied from are seen while a layer is built.
STAGES = "/opt/benchflow-stages"
_UNPACKED = "/opt/benchflow-unpacked"
_PROGRAM = "/opt/benchflow-run"
_LAST_LINES = 20
_LAST_BYTES = 4000

# What is taken stays as it is but for its owner, which is root unless the instruction says otherwise.
_COPY = r"""
set -e
from=$1 target=$2 into=$3 owner=$4 mode=$5
shift 5
held=$(mktemp -d)
put() {
    [ -z "$owner" ] || chown -R "$owner" "$held/x"
    [ -z "$mode" ] || chmod -R "$mode" "$held/x"
    if [ -d "$held/x" ]; then
        mkdir -p "$target"
        cp -R -P --preserve=mode,ownership,timestamps,links "$held/x/." "$target/"
    elif [ -n "$into" ] || [ -d "$target" ]; then
        mkdir -p "$target"
        cp -P --preserve=mode,ownership,timestamps,links "$held/x" "$target/$1"
    else
        mkdir -p "$(dirname "$target")"
        cp -P --preserve=mode,ownership,timestamps,links "$held/x" "$target"
    fi
    rm -rf "$held/x"
}
for pattern; do
    IFS=
    for path in $from/$pattern; do
        [ -e "$path" ] || { echo "nothing there is called $pattern" >&2; exit 1; }
        case $path:$from in
        *.tar:*unpacked | *.tgz:*unpacked | *.tbz:*unpacked | *.tbz2:*unpacked | *.txz:*unpacked | *.tar.*:*unpacked)
            mkdir "$held/x"
            tar -xf "$path" -C "$held/x" ;;
        *)
            cp -R -H --preserve=mode,timestamps,links "$path" "$held/x" ;;
        esac
        put "$(basename "$path")"
    done
done
rm -rf "$held"
"""


@dataclass(frozen=True, slots=True)
class Workshop:
    """A sandbox in which the steps of a task's Dockerfile are done, until `end` by the monotonic clock."""

    sandbox: LocalSandbox
    task: Task
    end: float

    async def do(self, step: Placed | Run | str, stage: str) -> None:
        """Do a step; `stage` is where the stage that it copies from is seen.

        Raises: SandboxError with the step, its line and the last it said.
        """
        if isinstance(step, str):
            await self.sandbox.make_directory(step)
        elif isinstance(step, Run):
            await self._run(step)
        elif step.stage is not None:
            await self._copy(step, stage, step.copy.sources)
        elif step.is_archive:
            await self._unpack(step)
        else:
            await self._place(step)

    async def _place(self, step: Placed) -> None:
        context = self.task.environment_dir or self.task.path
        ignore = read_ignore(context, self.task.dockerfile) if self.task.dockerfile else Ignore([])
        inside = self.sandbox.inside
        await asyncio.to_thread(place_files, step, context, ignore, inside, lambda text: find_owner(inside, text))

    async def _unpack(self, step: Placed) -> None:
        """Bring the sources of an ADD in under their own names, and have them unpacked or copied on."""
        bare = replace(step.copy, chown=None, chmod=None)
        await self._place(replace(step, copy=bare, target=_UNPACKED, into=True))
        await self._copy(step, _UNPACKED, [Path(source).name for source in step.copy.sources])
        await self.sandbox.remove(_UNPACKED)

    async def _copy(self, step: Placed, top: str, names: Sequence[str]) -> None:
        options = (top, step.target, "into" if step.into else "", step.copy.chown or "", step.copy.chmod or "")
        sources = [name.lstrip("/") or "." for name in names]
        await self.sandbox.enter("setup", "none")
        argv = ["/bin/sh", "-c", _COPY, "sh", *options, *sources]
        await self._execute(Run(argv=tuple(argv), env={}, cwd="/", user=None, line=step.copy.line, said=step.said))

    async def _run(self, run: Run) -> None:
        if run.script is not None:
            with tempfile.TemporaryDirectory() as place:
                program = Path(place, "program")
                program.write_text(run.script)
                program.chmod(0o755)
                await self.sandbox.upload(program, _PROGRAM)
            run = replace(run, argv=(_PROGRAM,))
        await self.sandbox.enter("setup", "public" if run.network else "none")
        await self._execute(replace(run, env={**public_sources(), **run.env}))
        if run.script is not None:
            await self.sandbox.remove(_PROGRAM)

    async def _execute(self, run: Run) -> None:
        left = max(self.end - time.monotonic(), 0.1)
        argv = ["/bin/sh", "-c", 'exec "$@" 2>&1', "sh", *run.argv]
        result = await self.sandbox.exec(argv, env=run.env, cwd=run.cwd, user=run.user, timeout=left)
        if result.exit_code == 0:
            return
        if result.timed_out:
            limit = self.task.environment.build_timeout_sec
            how = f"did not end: the build's {limit:g} s (environment.build_timeout_sec) are over"
        else:
            how = f"ended with exit code {result.exit_code}"
        last = "\n".join((result.stdout + result.stderr).strip()[-_LAST_BYTES:].splitlines()[-_LAST_LINES:])
        said = f"; it said last:\n{last}" if last else " without a word"
        raise SandboxError(f"{self.task.dockerfile}:{run.line}: {run.said} {how}{said}")
