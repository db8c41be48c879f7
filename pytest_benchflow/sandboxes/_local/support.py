"""Tell which tasks this machine can stand in for."""

from __future__ import annotations

import re
import tempfile
from typing import TYPE_CHECKING

from pytest_benchflow.errors import UnsupportedError
from pytest_benchflow.sandboxes._local.accounts import is_own_user
from pytest_benchflow.sandboxes._local.bwrap import is_root
from pytest_benchflow.sandboxes._local.etc import system_users
from pytest_benchflow.sandboxes._local.image import plan_image
from pytest_benchflow.sandboxes._local.layers import layers_dir
from pytest_benchflow.sandboxes._local.overlay import why_no_overlay

if TYPE_CHECKING:
    from pytest_benchflow.tasks.task import Task


def why_unsupported(task: Task) -> str | None:
    """Return the reason to skip a task in the local sandbox, None when it can run. Raises: TaskError."""
    environment = task.environment
    if environment.os.lower() != "linux":
        return f"needs {environment.os}: the local sandbox is linux"
    if environment.gpus or environment.tpu:
        return "needs a GPU or TPU, which the local sandbox does not pass on"
    if task.compose_file is not None:
        return f"needs docker: {task.compose_file.name} describes several services"
    try:
        image = plan_image(task)
    except UnsupportedError as error:
        return str(error)
    if image.runs:
        return _why_not_built(image.runs)
    users = {image.user, *(step.agent.user for step in task.steps), *(step.verifier.user for step in task.steps)}
    return next((reason for user in users if (reason := _why_not_user(user))), None)


def _why_not_built(said: str) -> str | None:
    """Return why no command can run for an image here; the users that its commands make are known only afterwards."""
    if not is_root():
        return f"needs docker, or pytest run as root: {said}"
    for place in (tempfile.gettempdir(), str(layers_dir())):
        if reason := why_no_overlay(place):
            return f"needs docker: {said} (here {reason})"
    return None


def _why_not_user(user: str | int | None) -> str | None:
    if is_own_user(user):
        return None
    if not is_root():
        return f"needs docker, or pytest run as root: user {user}"
    name = str(user).partition(":")[0]
    if not re.fullmatch(r"\d+", name) and name not in system_users():
        return f"needs docker: user {name} does not exist on this machine"
    return None
