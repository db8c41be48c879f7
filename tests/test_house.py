"""The house stands as drawn: floors, no circles, sizes, and a light start."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).parents[1] / "pytest_benchflow"
HEAVY = ["litellm", "daytona", "paramiko", "docker", "acp", "aiohttp", "asyncio", "pydantic", "jsonschema", "yaml"]
HEAVY += ["rich", "pyarrow"]

# Lowest first. A room may import from rooms of lower floors; within the second floor only from rooms named earlier.
FLOORS = [
    ["errors", "hookspecs"],
    ["settings", "registry", "contracts", "records", "dialects", "tasks", "catalog", "pricing"],
    ["training"],
    ["checks", "proxy", "agents", "sandboxes", "exporters"],
    ["rollout", "report"],
    ["collect", "fixtures", "publish"],
    ["plugin", "cli"],
    ["__main__"],
]
ORDERED_FLOOR = 1


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else None


def imports_of(path: Path) -> Iterator[str]:
    """Yield the package's own modules that a file imports at run time, also inside functions."""
    known = {name_of(other) for other in modules()}

    def visit(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            return
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("pytest_benchflow"):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("pytest_benchflow"))
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    return visit(ast.parse(path.read_text(encoding="utf-8")))


def floor_of(room: str) -> tuple[int, int]:
    for number, rooms in enumerate(FLOORS):
        if room in rooms:
            return number, rooms.index(room)
    raise AssertionError(f"the room {room} stands on no floor; add it to FLOORS")


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_arrows_only_point_down(path: Path) -> None:
    room = room_of(name_of(path))
    if room is None:
        return
    floor, place = floor_of(room)
    for target in imports_of(path):
        other = room_of(target)
        if other is None or other == room:
            continue
        other_floor, other_place = floor_of(other)
        lower = other_floor < floor or (other_floor == floor == ORDERED_FLOOR and other_place < place)
        assert lower, f"{name_of(path)} imports {target}: {other} is not below {room}"


def test_no_import_circle() -> None:
    graph = {name_of(path): set(imports_of(path)) - {name_of(path)} for path in modules()}
    done: set[str] = set()

    def walk(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, "circle: " + " -> ".join((*trail[trail.index(module) :], module))
        if module not in done:
            for target in graph.get(module, ()):
                walk(target, (*trail, module))
            done.add(module)

    for module in graph:
        walk(module, ())


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_files_and_functions_stay_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 500, f"{path.name} has {text.count(chr(10))} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            assert length <= 60, f"{path.name}:{node.lineno} {node.name} has {length} lines"


def test_starting_pytest_imports_nothing_heavy() -> None:
    listing = (
        "import sys, pytest\n"
        "code = pytest.main(['-VV'])\n"
        f"print('HEAVY', sorted(set({HEAVY!r}) & set(sys.modules)), 'pytest_benchflow.plugin' in sys.modules)\n"
        "sys.exit(code)\n"
    )
    # Other packages' plugins that happen to be installed here are not ours to judge.
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_benchflow.plugin"}
    command = [sys.executable, "-c", listing]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=alone)
    assert done.returncode == 0, done.stderr
    assert "HEAVY [] True" in done.stdout


def test_no_machine_path_is_committed() -> None:
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True, cwd=PACKAGE.parent).stdout
    machine = ("/work" + "/main", "/root/" + ".pyenv", "/work" + "/shared")
    for name in listed.splitlines():
        path = PACKAGE.parent / name
        if path.is_file():
            text = path.read_bytes().decode("utf-8", "replace")
            assert not any(place in text for place in machine), f"{name} names a path of one machine"
