"""Say what came, what is allowed and what to do.

Every error of this package is a `BenchflowError` and also the standard-library class a caller would expect.
The `category` says who is at fault in a rollout (artifacts: `error_category`, `verifier_error_category`).
"""

from __future__ import annotations


class BenchflowError(Exception):
    """Base of every error this package raises on purpose; its text is written for a person."""

    category = "infra"
    details: str | None = None  # what is known beside the text, for error_details


class UsageError(BenchflowError, ValueError):
    """A user asked for something that does not exist or does not fit."""

    category = "usage"


class TaskError(BenchflowError, ValueError):
    """A task directory is not a valid task; the text names file, key and what is allowed."""

    category = "task"


class UnsupportedError(BenchflowError, NotImplementedError):
    """This cell cannot run here; the text is the reason a skip shows."""

    category = "unsupported"


class UnpricedError(BenchflowError, ValueError):
    """What something cost is not known; the text is the reason that stands beside a null."""

    category = "accounting"


class UnstartedError(UnsupportedError):
    """A rollout that could run here was not started; the run fails, and the cell is missing."""


class OverBudgetError(UnstartedError):
    """A rollout was not started, because the session has spent what it may."""

    category = "budget"


class HeldBackError(UnstartedError):
    """A rollout was not started, because a canary of its agent, model and skill mode is not known to be fine."""

    category = "canary"


class SandboxError(BenchflowError, RuntimeError):
    """A sandbox could not be made, entered or used; `said` is what a command had printed by then, out and err."""

    category = "sandbox"
    said: tuple[str, str] = ("", "")
    nothing_made = False  # it was refused before anything of it could be made


class AgentError(BenchflowError, RuntimeError):
    """An agent could not be installed or started, crashed, or broke its protocol."""

    category = "agent"


class ProviderError(BenchflowError, RuntimeError):
    """The model's side failed: no key, no route, a refused or broken call."""

    category = "provider"


class UnansweredError(ProviderError):
    """A model's provider has, or may have, got a request and did not answer it: what it bills is not known."""


class RejectedKeyError(ProviderError):
    """A provider rejected a key: no rollout that needs it can succeed."""


class ReplayMismatchError(ProviderError):
    """A request differs from the recording; the text shows the first difference."""

    category = "replay_mismatch"


class VerifierError(BenchflowError, RuntimeError):
    """The verifier gave no score: never the same as a score of 0."""

    category = "verifier"

    def __init__(self, message: str, *, category: str = "crash") -> None:
        super().__init__(message)
        self.category = category


class RecordError(BenchflowError, ValueError):
    """A record on disk is missing, torn or not what its format says; the text names file and line."""

    category = "capture"
