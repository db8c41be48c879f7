"""Bring a plan into a repository: only what is missing or changed there, in commits of bounded size, the rest of an
interrupted publication too."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_benchflow.publish.choose import Skipped, copied
from pytest_benchflow.publish.hub import WAITS, ConflictError, HubError, TransientError, pause
from pytest_benchflow.publish.plan import MANIFEST, of_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_benchflow.publish.choose import Rules
    from pytest_benchflow.publish.hub import Hub, State
    from pytest_benchflow.publish.plan import Plan, Unit
    from pytest_benchflow.publish.staging import File
    from pytest_benchflow.records.redact import Redactor

# Of one commit.
MOST_FILES = 200
MOST_BYTES = 64 * 1024 * 1024
_TRIES = len(WAITS) + 1
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Part:
    """What one commit brings: files by their path in the repository, of whole rollouts where they fit."""

    files: Mapping[str, File]
    units: Sequence[Unit]


@dataclass(slots=True)
class Uploaded:
    """What an upload did."""

    files: int = 0
    bytes: int = 0
    commits: int = 0


class Upload:
    """One publication on its way; `state` is what the repository is known to hold."""

    def __init__(self, plan: Plan, hub: Hub, rules: Rules, redactor: Redactor, tell: Callable[[str], None]) -> None:
        self.done = Uploaded()
        self._plan = plan
        self._hub = hub
        self._rules = rules
        self._redactor = redactor
        self._tell = tell
        self._below = below(plan)
        self._state: State

    def run(self, state: State, name: str) -> Uploaded:
        """Commit all that is not there; the manifest of the publication comes last. Raises: HubError."""
        self._state = state
        coming = list(parts(self._plan.units, state))
        for part in coming:
            with ExitStack() as stack:
                self._push(self._content(part, stack), part.files, f"Add rollouts of {name}")
        manifest = {self._plan.place: of_bytes(MANIFEST, self._plan.manifest)}
        if coming:
            self._check(self._plan.files.keys() - manifest.keys())
        if not self._state.holds(self._plan.place, manifest[self._plan.place]):
            self._push({self._plan.place: self._plan.manifest}, manifest, f"Add the manifest of {name}")
            self._check(manifest.keys())
        return self.done

    def _content(self, part: Part, stack: ExitStack) -> dict[str, Path | bytes]:
        """Return the content of a commit's files, from copies that last as long as `stack`. Raises: HubError."""
        found: dict[str, Path | bytes] = {}
        for unit in part.units:
            chosen = unit.chosen
            try:
                again, place = stack.enter_context(copied(chosen.root, self._rules, self._redactor))
            except (Skipped, OSError) as error:
                raise HubError(f"{chosen.root} changed while it was being published: {error}; run it again") from None
            if again != chosen:
                raise HubError(f"{chosen.root} changed while it was being published; run it again")
            found |= {f"{chosen.place}/{file.path}": place / file.path for file in chosen.files}
            found[f"{chosen.place}/{MANIFEST}"] = unit.manifest
        return {path: found[path] for path in part.files}

    def _push(self, content: Mapping[str, Path | bytes], files: Mapping[str, File], message: str) -> None:
        """Make one commit, looking anew at what is there after each that did not succeed. Raises: HubError."""
        for attempt in range(_TRIES):
            wanted = {path: file for path, file in files.items() if not self._state.holds(path, file)}
            if not wanted:
                return
            try:
                head = self._hub.commit({path: content[path] for path in wanted}, self._state.head, message)
            except (ConflictError, TransientError) as error:
                if attempt == _TRIES - 1:
                    raise
                if isinstance(error, TransientError):
                    self._tell(f"trying again: {error}")
                    pause(error, WAITS[attempt])
                else:
                    self._tell("the repository has a newer commit: looking at it")
                self._state = self._hub.state(self._below)
                continue
            known = {path: (file.sha256, file.size) for path, file in wanted.items()}
            self._state = replace(self._state, head=head, files={**self._state.files, **known})
            self.done.files += len(wanted)
            self.done.bytes += sum(file.size for file in wanted.values())
            self.done.commits += 1
            self._tell(f"commit {head[:8]}: {len(wanted)} file{'s' if len(wanted) > 1 else ''}")
            return

    def _check(self, paths: Iterable[str]) -> None:
        """Look at the repository once more: what was committed must be there. Raises: HubError naming what is not."""
        self._state = self._hub.state(self._below)
        lost = sorted(path for path in paths if not self._state.holds(path, self._plan.files[path]))
        if lost:
            more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
            raise HubError(
                f"{self._hub.repo} did not take {', '.join(lost[:_NAMED])}{more}: either its .gitignore names them, or "
                "somebody else changed them; the manifest of this publication is not complete. Look at the "
                "repository, then run it again"
            )


def parts(units: Sequence[Unit], state: State) -> Iterator[Part]:
    """Yield what each commit brings, of what the repository does not hold; a rollout is split only when it is large."""
    files: dict[str, File] = {}
    held: dict[str, Unit] = {}
    for unit in units:
        missing = {path: file for path, file in unit.files.items() if not state.holds(path, file)}
        if files and not _fits({**files, **missing}):
            yield Part(files, list(held.values()))
            files, held = {}, {}
        for path, file in missing.items():
            if files and not _fits({**files, path: file}):
                yield Part(files, list(held.values()))
                files, held = {}, {}
            files[path] = file
            held[unit.chosen.place] = unit
    if files:
        yield Part(files, list(held.values()))


def _fits(files: Mapping[str, File]) -> bool:
    return len(files) <= MOST_FILES and sum(file.size for file in files.values()) <= MOST_BYTES


def below(plan: Plan) -> str:
    """Return the directory of a repository that holds all that a plan brings."""
    places = [path.split("/")[:-1] for path in plan.files]
    common = []
    for names in zip(*places, strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return "/".join(common)
