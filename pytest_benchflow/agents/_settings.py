"""Find out whether an agent kept the settings that its launch_cmd wrote, or went on with others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_benchflow.catalog.load import HostTable
    from pytest_benchflow.contracts import AgentContext

# Beside the settings: what launch_cmd wrote, as it was.
COPY = ".launched"
_LONGEST = 1 << 20
_READ_SEC = 60.0
_SHOWN = 5
_READ = f"""\
for file in "$1" "$1{COPY}"; do
  if [ -f "$file" ]; then head -c {_LONGEST + 1} "$file"; fi
  printf '\\0'
done
"""


async def settings_kept(context: AgentContext, host: HostTable, env: Mapping[str, str]) -> dict[str, Any] | None:
    """Return {file, kept, why} after an agent's run; None: its manifest names no settings.

    Raises: SandboxError when that cannot be found out.
    """
    if host.settings is None:
        return None
    # The path is the manifest's own text, in which the shell puts $HOME.
    script = f'set -- "{host.settings}"\n{_READ}'
    read = await context.sandbox.exec(["sh", "-c", script], env=env, user=context.user, timeout=_READ_SEC)
    files = read.stdout.split("\0")
    if read.exit_code != 0 or len(files) != 3 or max(map(len, files)) > _LONGEST:
        raise SandboxError(f"{host.settings} could not be read after the agent's run: {read.stderr.strip()[-300:]}")
    now, launched, _ = files
    why = _refused(context, host.settings_refused) or _difference(now, launched)
    return {"file": host.settings, "kept": why is None, "why": why}


def _refused(context: AgentContext, sign: str | None) -> str | None:
    log = context.log_dir / "stdout.txt"
    if sign and log.is_file() and sign in log.read_text("utf-8", errors="replace"):
        return f"the agent printed {sign!r}"
    return None


def _difference(now: str, launched: str) -> str | None:
    """Say how a file differs from what was launched with, None: all of that is in it. Values are never shown."""
    if not now:
        return "the file is gone" if launched else "it and its copy are gone, or launch_cmd ended before it wrote them"
    try:
        wanted = json.loads(launched)
    except ValueError:
        return "the copy that launch_cmd made of it is gone" if not launched else "the copy of it was overwritten"
    try:
        found = json.loads(now)
    except ValueError:
        return "the file is no JSON any more"
    changed = list(_changed(wanted, found, ""))
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    return f"the agent ran with other values of {', '.join(changed[:_SHOWN])}{more}" if changed else None


def _changed(wanted: Any, found: Any, place: str) -> Iterator[str]:
    """Yield the places whose values are not those wanted; what an agent adds contradicts nothing."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key, value in wanted.items():
            yield from _changed(value, found.get(key), f"{place}.{key}" if place else key)
    elif wanted != found or type(wanted) is not type(found):
        yield place or "everything"
