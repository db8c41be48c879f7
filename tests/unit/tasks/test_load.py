from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.errors import TaskError
from pytest_benchflow.tasks.load import find_tasks, is_task, load_task, task_digest, task_file

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.tasks.places import Write


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("names", "made_by"),
    [
        pytest.param({"task.toml": ""}, "task.toml", id="harbor"),
        pytest.param({"task.md": "---\n---\n"}, "task.md", id="document"),
        pytest.param({"task.md": "\ufeff---\n---\n"}, "task.md", id="document-with-mark"),
        pytest.param({"task.md": "---\n---\n", "task.toml": ""}, "task.md", id="both"),
        pytest.param({"task.md": "Buy milk.\n", "task.toml": ""}, "task.toml", id="note-beside-harbor"),
        pytest.param({"task.md": "No front matter.\n", "verifier/test.sh": ""}, "task.md", id="document-to-be-mended"),
        pytest.param({"task.md": "Buy milk.\n"}, None, id="note"),
        pytest.param({"tasks.toml": ""}, None, id="other-name"),
    ],
)
def test_a_task_is_known_by_its_file(tmp_path: Path, names: dict[str, str], made_by: str | None) -> None:
    for name, text in names.items():
        put(tmp_path / name, text)
    assert is_task(tmp_path) is (made_by is not None)
    assert task_file(tmp_path) == (tmp_path / made_by if made_by else None)


def test_tasks_are_found_in_order_and_not_in_one_another(tmp_path: Path) -> None:
    for name in ("b/task.toml", "a/deep/task.toml", "a/deep/environment/task.toml", "c/task.md"):
        put(tmp_path / name, "---\n---\n")
    assert find_tasks(tmp_path) == [tmp_path / "a/deep", tmp_path / "b", tmp_path / "c"]
    assert find_tasks(tmp_path / "b") == [tmp_path / "b"]


@pytest.mark.parametrize(
    "place",
    [".git/x", ".hidden", "node_modules/x", "build/x", "tea.egg-info/x", "env/x", "jobs/one/cell", "old/artifacts/x"],
    ids=["git", "hidden", "node", "build", "egg-info", "virtual-environment", "job", "rollout"],
)
def test_some_directories_are_not_searched(tmp_path: Path, place: str) -> None:
    put(tmp_path / "env/pyvenv.cfg")
    put(tmp_path / "jobs/one/job.json", '{"versions": {"pytest_benchflow": "1"}}')
    put(tmp_path / "old/config.json")
    put(tmp_path / "old/result.json")
    put(tmp_path / place / "task.toml")
    assert find_tasks(tmp_path) == []


def test_files_that_only_look_like_a_run_hide_nothing(tmp_path: Path) -> None:
    put(tmp_path / "job.json", "{}")
    put(tmp_path / "config.json", "{}")
    put(tmp_path / "one/task.toml")
    assert find_tasks(tmp_path) == [tmp_path / "one"]


def test_links_are_not_searched(tmp_path: Path) -> None:
    put(tmp_path / "outside/one/task.toml")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside/link").symlink_to(tmp_path / "outside")
    assert find_tasks(tmp_path / "inside") == []


def test_searching_nowhere_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="there is no such directory; name one that is a task or holds tasks"):
        find_tasks(tmp_path / "none")


@pytest.mark.parametrize("name", [".", "task.toml"], ids=["directory", "file"])
def test_a_task_is_loaded_by_directory_or_file(write: Write, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    root = write()
    monkeypatch.chdir(root)
    task = load_task(name)
    assert (task.path, task.file, task.slug) == (root, root / "task.toml", "tea-timer")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("none", "there is no such directory", id="missing"),
        pytest.param("empty", "neither task.toml nor task.md", id="no-task"),
    ],
)
def test_what_is_no_task_is_said(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskError, match=message):
        load_task(tmp_path / name)


@pytest.mark.parametrize(
    "place",
    [
        "tests/secret",
        "environment/data/secret",
        "solution/secret",
        "environment/skills/steep/secret",
        "recorded/baseline.jsonl",
        "steps/boil/tests/secret",
        "steps/boil/workdir/secret",
        "steps/boil/more/secret",
    ],
    ids=lambda place: place.replace("/", "-"),
)
@pytest.mark.parametrize("target", ["absolute", "relative", "dangling", "directory"])
def test_a_link_out_of_the_task_is_refused(write: Write, tmp_path: Path, place: str, target: str) -> None:
    files = {"steps/boil/instruction.md": "Boil.\n"} if place.startswith("steps") else {}
    root = write({**files, "task.toml": "[[steps]]\nname = 'boil'\n" if files else ""})
    link = root / place
    link.parent.mkdir(parents=True, exist_ok=True)
    put(tmp_path / "host/secret")
    up = "../" * (place.count("/") + 1)
    link.symlink_to(
        {
            "absolute": str(tmp_path / "host/secret"),
            "relative": f"{up}host/secret",
            "dangling": f"{up}host/none",
            "directory": str(tmp_path / "host"),
        }[target]
    )
    with pytest.raises(
        TaskError, match=rf"\Atea-timer/task\.toml: {place} is a link to .*, outside of the task directory"
    ):
        load_task(root)


@pytest.mark.parametrize(
    "name", ["instruction.md", "task.toml", "tests", "environment", "solution"], ids=lambda name: name.split(".")[0]
)
def test_a_part_that_is_a_link_out_is_refused(write: Write, tmp_path: Path, name: str) -> None:
    root = write({"solution/solve.sh": ""})
    (root / name).rename(tmp_path / name)
    (root / name).symlink_to(tmp_path / name)
    with pytest.raises(TaskError, match=rf"{name} is a link to .*; allowed: files, and links to what is inside of it"):
        load_task(root)


def test_a_step_that_is_a_link_out_is_refused(write: Write, tmp_path: Path) -> None:
    put(tmp_path / "host/instruction.md", "Boil.\n")
    root = write({"task.toml": "[[steps]]\nname = 'boil'\n"})
    (root / "steps").mkdir()
    (root / "steps/boil").symlink_to(tmp_path / "host")
    with pytest.raises(TaskError, match=r"steps/boil is a link to .*, outside of the task directory"):
        load_task(root)


def test_a_link_to_itself_is_refused(write: Write) -> None:
    root = write()
    (root / "tests/loop").symlink_to("loop")
    with pytest.raises(TaskError, match="tests/loop is a link"):
        load_task(root)


def test_links_inside_of_the_task_are_kept(write: Write, tmp_path: Path) -> None:
    root = write({"environment/data.txt": "x"})
    (root / "tests/data.txt").symlink_to("../environment/data.txt")
    (root / "tests/all").symlink_to(root / "environment")
    (tmp_path / "elsewhere").symlink_to(root)
    assert load_task(root).steps[0].tests == root / "tests"
    # The directory itself may be reached through a link, which gives it its name.
    assert load_task(tmp_path / "elsewhere").slug == "elsewhere"


def test_a_digest_tells_one_task_from_another(write: Write) -> None:
    root = write({"environment/a/b.txt": "1"})
    seen = [task_digest(load_task(root))]

    def changed() -> bool:
        seen.append(task_digest(load_task(root)))
        return seen[-1] not in seen[:-1]

    put(root / "tests/test.sh", "echo 0 > /logs/verifier/reward.txt\n")
    assert changed(), "content"
    put(root / "environment/a/c.txt", "1")
    assert changed(), "a file more"
    (root / "environment/a/c.txt").rename(root / "environment/a/d.txt")
    assert changed(), "a name"
    (root / "environment/a/e.txt").symlink_to("b.txt")
    assert changed(), "a link"
    assert all(len(digest) == 64 for digest in seen)


def test_a_digest_leaves_recordings_out(write: Write) -> None:
    root = write()
    before = task_digest(load_task(root))
    put(root / "recorded/baseline.jsonl", "{}\n")
    assert task_digest(load_task(root)) == before
    put(root / "environment/recorded/data.txt", "1")
    assert task_digest(load_task(root)) != before


def test_a_digest_is_of_the_files_and_not_of_the_place(write: Write, tmp_path: Path) -> None:
    root = write()
    before = task_digest(load_task(root))
    assert task_digest(load_task(root.rename(tmp_path / "moved"))) == before


def test_content_does_not_run_into_names(tmp_path: Path) -> None:
    def digest_of(directory: str, files: dict[str, str]) -> str:
        for name, text in files.items():
            put(tmp_path / directory / name, text)
        put(tmp_path / directory / "task.toml")
        put(tmp_path / directory / "instruction.md", "Brew.\n")
        put(tmp_path / directory / "tests/test.sh")
        return task_digest(load_task(tmp_path / directory))

    assert digest_of("one", {"a": "bc", "d": ""}) != digest_of("two", {"a": "b", "cd": ""})


def test_harbor_tasks_are_loaded_without_yaml_and_models(write: Write) -> None:
    code = (
        "import sys; from pytest_benchflow.tasks.load import load_task; load_task(sys.argv[1]);"
        "print([name for name in ('yaml', 'pydantic', 'jsonschema', 'asyncio') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(write())], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
