"""Talk to a dataset repository of the Hugging Face Hub, and say in a sentence what went wrong.

The token comes from HF_TOKEN or the hub's own login, HF_ENDPOINT leads to another hub; neither's secrets are shown.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pytest_benchflow import __version__
from pytest_benchflow.errors import BenchflowError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pytest_benchflow.publish.staging import File
    from pytest_benchflow.records.redact import Redactor

_Given = TypeVar("_Given")

_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
# Of one answer; a large commit takes the hub a while.
_ANSWER_SEC = 300
# Waits before another try, where the hub names none; so many tries there are.
WAITS = (1.0, 2.0, 4.0, 8.0)
_LONGEST_WAIT = 120.0
_SAID = 300
_CRITICAL = 50


class HubError(BenchflowError, RuntimeError):
    """The hub refused something, or could not be reached."""


class TransientError(HubError):
    """The hub may do the same thing later, and perhaps has done it; `wait` is in seconds, where it says."""

    def __init__(self, message: str, wait: float | None = None, *, undone: bool = False) -> None:
        super().__init__(message)
        self.wait = wait
        self.undone = undone  # it is certain that nothing was done


class ConflictError(HubError):
    """Somebody else has changed the repository since it was looked at."""


@dataclass(frozen=True, slots=True)
class State:
    """A repository as it is: its newest commit, and its files by path with what is known of their content."""

    head: str
    files: Mapping[str, tuple[str, int]]  # SHA-256 of a large file, else git's id; bytes

    def holds(self, path: str, file: File) -> bool:
        """Tell whether a file is there with this content."""
        return self.files.get(path) in ((file.sha256, file.size), (file.git, file.size))


class Hub:
    """A dataset repository, at its main branch or at a pull request."""

    def __init__(self, repo: str, redactor: Redactor) -> None:
        if not _REPO.fullmatch(repo):
            raise UsageError(f"--repo is {repo!r}; it takes the name of a dataset repository, as in ORGANISATION/NAME")
        try:
            import huggingface_hub
            from huggingface_hub import constants
            from huggingface_hub.utils import disable_progress_bars, logging  # type: ignore[attr-defined]
        except ImportError as error:
            raise UsageError(
                f"publishing needs huggingface_hub ({error}); pip install 'pytest-benchflow[hub]'"
            ) from None
        # Its warnings name addresses that are signed for writing.
        logging.set_verbosity(_CRITICAL)
        disable_progress_bars()
        self.repo = repo
        self.revision = "main"
        self._opened = False  # the pull request, here
        self.token = self._guarded(huggingface_hub.get_token)
        if self.token is not None and not re.fullmatch("[!-~]+", self.token):
            raise UsageError("the token, of HF_TOKEN or of `hf auth login`, has characters that no token has")
        self.endpoint = _without_login(constants.ENDPOINT)
        self._redactor = redactor
        self._redactor.add(*(secret for secret in (self.token, *_login(constants.ENDPOINT)) if secret))
        self._add = huggingface_hub.CommitOperationAdd
        # Without a token it must not look for one itself: what it finds would not be known as a secret.
        self._api = huggingface_hub.HfApi(
            token=self.token or False, library_name="pytest-benchflow", library_version=__version__
        )

    def use_pull_request(self, number: int) -> None:
        """Turn to a pull request. Raises: UsageError when there is no open one of that number, HubError."""
        from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

        try:
            found = self._again(lambda: self._api.get_discussion_details(self.repo, number, repo_type="dataset"))
        except HubError as error:
            cause = error.__cause__
            if isinstance(cause, RepositoryNotFoundError):
                raise
            if isinstance(cause, HfHubHTTPError) and cause.response.status_code == 404:
                raise UsageError(f"{self.repo} has no pull request {number}; --pr new opens one") from None
            raise
        if not found.is_pull_request:
            raise UsageError(f"{number} is a discussion of {self.repo}, and no pull request; --pr new opens one")
        if found.status not in ("open", "draft"):
            raise UsageError(f"pull request {number} of {self.repo} is {found.status}; --pr new opens another")
        self.revision = f"refs/pr/{number}"

    def open_pull_request(self, title: str, description: str) -> int:
        """Open a pull request, turn to it and return its number. Raises: HubError."""

        def create() -> Any:
            return self._api.create_pull_request(self.repo, title, description=description, repo_type="dataset")

        number: int = self._again(create, only_undone=True).num
        self.revision = f"refs/pr/{number}"
        self._opened = True
        return number

    def state(self, below: str) -> State:
        """Return the newest commit, and the files below a directory in it. Raises: UsageError, HubError."""
        from huggingface_hub.errors import EntryNotFoundError
        from huggingface_hub.hf_api import RepoFile

        def read() -> State:
            info = self._api.repo_info(self.repo, repo_type="dataset", revision=self.revision)
            files: dict[str, tuple[str, int]] = {}
            try:
                # Of that very commit, so that the two belong together.
                for each in self._api.list_repo_tree(
                    self.repo, below or None, recursive=True, revision=info.sha, repo_type="dataset"
                ):
                    if isinstance(each, RepoFile):
                        files[each.path] = (each.lfs.sha256 if each.lfs else each.blob_id, each.size)
            except EntryNotFoundError:
                pass
            return State(str(info.sha), files)

        return self._again(read)

    def commit(self, files: Mapping[str, Path | bytes], parent: str, message: str) -> str:
        """Add files in one commit on top of `parent` and return its id.

        Raises: ConflictError: `parent` is the newest no more; TransientError: it may have been made; HubError.
        """
        operations = [
            self._add(path_in_repo=path, path_or_fileobj=content if isinstance(content, bytes) else str(content))
            for path, content in files.items()
        ]

        def commit() -> Any:
            return self._api.create_commit(
                self.repo,
                operations,
                commit_message=message,
                repo_type="dataset",
                revision=self.revision,
                parent_commit=parent,
            )

        return str(self._guarded(commit).oid)

    def _again(self, call: Callable[[], _Given], *, only_undone: bool = False) -> _Given:
        """Call until the hub does it, waiting in between. Raises: HubError."""
        for wait in WAITS:
            try:
                return self._guarded(call)
            except TransientError as error:
                if only_undone and not error.undone:
                    raise
                pause(error, wait)
        return self._guarded(call)

    def _guarded(self, call: Callable[[], _Given]) -> _Given:
        """Call, and turn what the client raises into a sentence without secrets. Raises: UsageError, HubError."""
        from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

        # By itself the client waits without end.
        get_session().timeout = _ANSWER_SEC
        try:
            return call()
        except Exception as error:
            raise self._told(_root(error)) from _root(error)

    def _told(self, error: Exception) -> BenchflowError:
        from huggingface_hub import errors

        status, said = None, f"{type(error).__name__}: {error}"
        if isinstance(error, errors.HfHubHTTPError):
            status = error.response.status_code
            said = f"HTTP {status}: {error.server_message or error.response.reason_phrase}"
        said = f"{self.endpoint}: {self._redactor.text(' '.join(said.split())[:_SAID])}"
        if isinstance(error, errors.RevisionNotFoundError):
            return HubError(f"{said}; {self.repo} has no {self.revision}")
        if isinstance(error, errors.RepositoryNotFoundError):
            whose = "this token" if self.token else "who gives no token (HF_TOKEN, or `hf auth login`)"
            return HubError(f"{said}; there is no dataset repository {self.repo}, or {whose} may not see it")
        if status == 401:
            return HubError(f"{said}; the token is not accepted: set HF_TOKEN to a valid one, or `hf auth login`")
        if status == 403:
            other = "" if self._opened else ", or --pr new"
            return HubError(f"{said}; the token may not do this to {self.repo}: it takes one with write access{other}")
        if status in (409, 412):
            return ConflictError(said)
        if status == 429:
            return TransientError(said, _retry_after(error), undone=True)
        if isinstance(status, int):
            return TransientError(said) if status >= 500 else HubError(said)
        # What the client's HTTP library raises for a connection that fails or breaks; its name differs by version.
        if isinstance(error, getattr(errors, "HTTPError")):  # noqa: B009 - it is no public name of that module
            return TransientError(said)
        return HubError(said)


def pause(error: TransientError, wait: float) -> None:
    """Wait before another try, as long as the hub says if it does."""
    time.sleep(min(error.wait if error.wait is not None else wait, _LONGEST_WAIT))


def _root(error: Exception) -> Exception:
    """Return what made an upload fail, which the client wraps."""
    cause = error.__cause__
    return cause if type(error) is RuntimeError and isinstance(cause, Exception) else error


def _retry_after(error: Any) -> float | None:
    said = error.response.headers.get("retry-after", "")
    return float(said) if re.fullmatch(r"[0-9]{1,6}", said) else None


def _login(url: str) -> list[str]:
    parts = urlsplit(url)
    return [parts.password] if parts.password else []


def _without_login(url: str) -> str:
    return re.sub(r"://[^/@]*@", "://", url)
