"""What a Dockerfile amounts to here, and what is left to docker."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.errors import SandboxError, TaskError, UnsupportedError
from pytest_benchflow.sandboxes._context import Ignore
from pytest_benchflow.sandboxes._files import InsideRoot
from pytest_benchflow.sandboxes._local.bwrap import search_path
from pytest_benchflow.sandboxes._local.image import Run, build_image, is_stand_in, plan_image
from pytest_benchflow.sandboxes._local.support import why_unsupported
from pytest_benchflow.tasks.task import AgentPhase, NetworkPolicy
from tests.contracts.sandboxrig import make_task

if TYPE_CHECKING:
    from pathlib import Path


def build(tmp_path: Path, dockerfile: str, files: dict[str, str] | None = None) -> Path:
    """Build below tmp_path/root from a context of `files` and return that root."""
    task = make_task(tmp_path / "task", dockerfile=f"FROM debian:12\n{dockerfile}")
    for name, text in (files or {}).items():
        path = tmp_path / "task" / "environment" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    root = tmp_path / "root"
    root.mkdir()
    build_image(plan_image(task), task, InsideRoot(root), None)
    return root


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


FILES = {"a.txt": "a", "b.txt": "b", "sub/c.txt": "c", "sub/deep/d.log": "d"}


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        ("COPY a.txt /app/", {"app/a.txt"}),
        ("COPY a.txt /app/name", {"app/name"}),
        ("WORKDIR /w\nCOPY a.txt .", {"w/a.txt"}),
        ("WORKDIR /w\nWORKDIR v\nCOPY a.txt b.txt ./", {"w/v/a.txt", "w/v/b.txt"}),
        ("COPY sub /app", {"app/c.txt", "app/deep/d.log"}),
        ("COPY sub/ /app/sub/", {"app/sub/c.txt", "app/sub/deep/d.log"}),
        ("COPY *.txt /app/", {"app/a.txt", "app/b.txt"}),
        ("ADD a.txt /app/", {"app/a.txt"}),
        ('COPY ["a.txt", "/with space/"]', {"with space/a.txt"}),
        ("ARG name=a\nENV dir=/d\nCOPY ${name}.txt $dir/", {"d/a.txt"}),
        ("WORKDIR /app\nCOPY a.txt /app", {"app/a.txt"}),
        ("RUN mkdir -p /data /more && mkdir -p /data/x\nCOPY a.txt /data", {"data/a.txt"}),
        ("COPY --exclude=*.txt sub /app", {"app/c.txt", "app/deep/d.log"}),
        ("COPY --exclude=**/*.log sub /app", {"app/c.txt"}),
        ("COPY <<EOF /etc/conf\ntext\nEOF", {"etc/conf"}),
    ],
    ids=[
        "into-a-directory", "to-a-name", "to-the-working-directory", "nested-working-directories", "contents",
        "contents-of-a-slash", "wildcard", "add", "json-form", "variables", "onto-an-existing-directory", "mkdir",
        "exclude-elsewhere", "exclude", "heredoc",
    ],
)  # fmt: skip
def test_files_land_where_a_build_puts_them(tmp_path: Path, instructions: str, expected: set[str]) -> None:
    assert tree(build(tmp_path, instructions, FILES)) == expected


def test_dockerignore_leaves_out_and_takes_back(tmp_path: Path) -> None:
    rules = "# a comment\n*.log\n**/*.log\nsub/deep\n!sub/deep/keep.md\nDockerfile\n.dockerignore\n"
    files = {**FILES, "sub/deep/keep.md": "k", "x.log": "x", ".dockerignore": rules}
    assert tree(build(tmp_path, "COPY . /app/", files)) == {
        "app/a.txt",
        "app/b.txt",
        "app/sub/c.txt",
        "app/sub/deep/keep.md",
    }


@pytest.mark.parametrize(
    ("pattern", "path", "kept"),
    [
        ("node_modules", "node_modules/x/y", False),
        ("node_modules", "src/node_modules", True),
        ("**/node_modules", "src/node_modules/x", False),
        ("/build/", "build/out", False),
        ("*.py[co]", "a.pyc", False),
        ("[!a].txt", "a.txt", True),
        ("a?c", "abc", False),
        ("a*c", "a/c", True),
        ("../x", "x", True),
    ],
)
def test_ignore_patterns(pattern: str, path: str, kept: bool) -> None:
    assert Ignore([pattern]).keeps(path) is kept


def test_chmod_sets_the_mode_and_files_keep_theirs_otherwise(tmp_path: Path) -> None:
    root = build(tmp_path, "COPY --chmod=750 a.txt /x\nCOPY a.txt /y", {"a.txt": ""})
    assert [(root / name).stat().st_mode & 0o777 for name in "xy"] == [0o750, 0o644]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_chown_gives_files_and_directories_away(tmp_path: Path) -> None:
    task = make_task(tmp_path / "task", dockerfile="FROM debian\nCOPY --chown=app:7 sub /app")
    (tmp_path / "task/environment/sub/deep").mkdir(parents=True)
    (tmp_path / "task/environment/sub/deep/file").touch()
    asked = []

    def owner(text: str) -> tuple[int, int]:
        asked.append(text)
        return 1234, 7

    (tmp_path / "root").mkdir()
    build_image(plan_image(task), task, InsideRoot(tmp_path / "root"), owner)
    made = [(path.stat().st_uid, path.stat().st_gid) for path in (tmp_path / "root/app").rglob("*")]
    assert (asked, made) == (["app:7"], [(1234, 7)] * 2)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("../outside", "outside the build context"),
        ("link", "leads out of the build context"),
        ("none", "nothing in the build context"),
        ("*.none", "nothing in the build context"),
    ],
    ids=["upwards", "link", "absent", "no-match"],
)
def test_sources_outside_the_context_are_refused(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "outside").write_text("x")
    (tmp_path / "task/environment").mkdir(parents=True)
    (tmp_path / "task/environment/link").symlink_to(tmp_path / "outside")
    with pytest.raises(TaskError, match=f"COPY in line 2.*{message}"):
        build(tmp_path, f"COPY {source} /app/")


def test_a_link_out_of_the_context_below_a_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "task/environment/sub").mkdir(parents=True)
    (tmp_path / "task/environment/sub/link").symlink_to("/etc/passwd")
    with pytest.raises(SandboxError, match="link is a link to /etc/passwd"):
        build(tmp_path, "COPY sub /app/")


def test_links_in_the_root_are_followed_inside_it(tmp_path: Path) -> None:
    root = build(tmp_path, "COPY a.txt /var/run/x/", {"a.txt": "a"})
    assert tree(root) == {"var/run/x/a.txt"}
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "way").symlink_to("/there")
    task = make_task(tmp_path / "task", dockerfile="FROM debian\nCOPY a.txt /way/")
    build_image(plan_image(task), task, InsideRoot(tmp_path / "again"), None)
    assert (tmp_path / "again/there/a.txt").read_text() == "a"


def test_variables_workdir_and_user_are_known(tmp_path: Path) -> None:
    settings = "ENV A=1 B=$A PATH=/opt/bin:$PATH\nCMD x\nEXPOSE 1\nLABEL a=b"
    text = f"FROM python:3.12-slim\n{settings}\nWORKDIR /srv\nWORKDIR app\nUSER nobody"
    image = plan_image(make_task(tmp_path, dockerfile=text))
    assert (image.base, image.workdir, image.user) == ("python:3.12-slim", "/srv/app", "nobody")
    assert dict(image.env) == {"A": "1", "B": "", "PATH": f"/opt/bin:{search_path()}"}


@pytest.mark.parametrize(
    ("instructions", "reason"),
    [
        ("RUN --mount=type=secret,id=key cat /run/secrets/key", "RUN --mount=type=secret,id=key cat /run/secrets/key"),
        ("RUN --security=insecure true", "RUN --security=insecure true"),
        ("ADD https://example.com/a.bin /a", "ADD https://example.com/a.bin /a"),
        ("COPY --from=example.com/tool:1 /a /a", "COPY --from=example.com/tool:1 /a /a"),
        ("COPY --chmod=u+x a /a", "COPY --chmod=u+x a /a"),
        ("COPY --parents a /a", "COPY --parents a /a"),
        ("FROM alpine", "FROM alpine"),
        ("FROM --platform=linux/s390x debian", "FROM --platform=linux/s390x on"),
        ("FROM alpine AS tool\nFROM tool", "FROM alpine"),
        ("FROM alpine AS tool\nFROM debian\nCOPY --from=tool /a /a", "FROM alpine"),
        ("FROM alpine AS tool\nFROM debian\nCOPY --from=1 /a /a", "FROM alpine"),
    ],
    ids=[
        "secret", "insecure", "download", "image", "symbolic-mode", "unknown-flag", "base", "platform", "stage",
        "copied-stage", "numbered-stage",
    ],
)  # fmt: skip
def test_what_needs_docker_is_said(tmp_path: Path, instructions: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(f"needs docker: {reason}")):
        plan_image(make_task(tmp_path, dockerfile=f"FROM debian\n{instructions}"))


def test_a_stage_that_nothing_needs_is_not_looked_at(tmp_path: Path) -> None:
    text = "FROM alpine AS tool\nRUN apk add x\nFROM debian\nCOPY a /a\n"
    image = plan_image(make_task(tmp_path, dockerfile=text))
    assert (image.base, image.runs, len(image.steps)) == ("debian", None, 1)


@pytest.mark.parametrize(
    ("instruction", "argv", "script"),
    [
        ("RUN echo $A && x", ("/bin/sh", "-c", "echo $A && x"), None),
        ('RUN ["mkdir", "/x y"]', ("mkdir", "/x y"), None),
        ("RUN mkdir -p /x && rm -rf /y", ("/bin/sh", "-c", "mkdir -p /x && rm -rf /y"), None),
        ("RUN <<EOF\necho $A\nEOF", ("/bin/sh", "-c", "echo $A\n"), None),
        ("RUN <<EOF\n#!/usr/bin/env python3\nprint()\nEOF", (), "#!/usr/bin/env python3\nprint()\n"),
        ("RUN python3 <<EOF\nprint()\nEOF", ("/bin/sh", "-c", "python3 <<EOF\nprint()\nEOF"), None),
        ('SHELL ["/bin/bash", "-ec"]\nRUN mkdir /x', ("/bin/bash", "-ec", "mkdir /x"), None),
    ],
    ids=["shell", "exec", "not-only-mkdir", "heredoc", "heredoc-program", "heredoc-input", "other-shell"],
)
def test_a_run_is_executed_as_a_build_executes_it(
    tmp_path: Path, instruction: str, argv: tuple[str, ...], script: str | None
) -> None:
    text = f"ARG V=1\nFROM debian\nARG V\nARG B=2 C\nENV B=3\nWORKDIR /w\nUSER app\n{instruction}\n"
    image = plan_image(make_task(tmp_path, dockerfile=text))
    run = image.steps[-1]
    assert isinstance(run, Run)
    assert (run.argv, run.script, run.cwd, run.user) == (argv, script, "/w", "app")
    assert run.env == {"V": "1", "B": "3"}
    assert image.env == {"B": "3"}
    assert image.runs == run.said


def test_a_run_goes_without_the_cache_of_other_builds_and_without_the_network_it_forgoes(tmp_path: Path) -> None:
    text = "FROM debian\nRUN --mount=type=cache,target=/root/.cache/pip --network=none pip install x\n"
    *before, run = plan_image(make_task(tmp_path, dockerfile=text)).steps
    assert before == ["/root/.cache/pip"]
    assert isinstance(run, Run)
    assert (run.argv[-1], run.network) == ("pip install x", False)


def test_without_root_a_run_needs_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    reason = why_unsupported(make_task(tmp_path, dockerfile="FROM debian\nRUN pip install x\n"))
    assert reason == "needs docker, or pytest run as root: RUN pip install x"


@pytest.mark.parametrize(
    ("image", "yes"),
    [
        ("python:3.12-slim", True),
        ("debian", True),
        ("docker.io/library/ubuntu:24.04", True),
        ("ghcr.io/example/t-bench/python-3-13:latest", True),
        ("buildpack-deps:bookworm", True),
        ("debian@sha256:0123", True),
        ("node:20", False),
        ("alpine", False),
        ("example.com:5000/solver", False),
        ("pythonista/tools", False),
    ],
)
def test_only_plain_images_are_stood_in_for(image: str, yes: bool) -> None:
    assert is_stand_in(image) is yes


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({}, None),
        ({"os": "windows"}, "needs windows"),
        ({"gpus": 1}, "needs a GPU"),
        ({"tpu": {"type": "v5e"}}, "needs a GPU or TPU"),
        ({"docker_image": "example.com/solver:1"}, "needs docker: image example.com/solver:1"),
        ({"docker_image": "python:3.12"}, None),
        ({"network": NetworkPolicy("allowlist", ("pypi.org",))}, None),
        ({"network": NetworkPolicy("no-network")}, None),
    ],
    ids=["plain", "windows", "gpu", "tpu", "image", "plain-image", "allowlist", "no-network"],
)
def test_tasks_this_machine_cannot_stand_in_for(
    tmp_path: Path, environment: dict[str, Any], reason: str | None
) -> None:
    found = why_unsupported(make_task(tmp_path, **environment))
    assert found is None if reason is None else (found or "").startswith(reason)


def test_an_unknown_user_needs_docker(tmp_path: Path) -> None:
    task = make_task(tmp_path, user="solver")
    assert task.steps[0].agent == AgentPhase(user="solver")
    assert re.match("needs docker.*user solver", why_unsupported(task) or "")
