"""Turn the agent's tool calls into what they do to files and which programs they run; most of them are passed over."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any

from pytest_benchflow.checks._actions import actions, text_of
from pytest_benchflow.checks._evidence import once
from pytest_benchflow.checks._shell import Operation, operations
from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.values import mapping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.checks._actions import Action
    from pytest_benchflow.records.rollout import Rollout

# A call without any of these words is neither parsed nor judged. Each of them begins with a letter of its own, not with
# an assertion: the search passes over all other letters at once.
_MARKS = re.compile(
    r"/(?:log|tests|solution|oracle|verifier|etc/environment|skills/|(?<![^\s'\"=(]/)[losv]?\w{0,7}[*?\[])|"
    r"BENCHFLOW_|SKILL\.md|\.bashrc|\.pth\b|_exit|bin/|conftest|customize|git(?<!\wgit)\b|ld\.so|profile|pytest|"
    r"site-packages|solve\.sh|test_outputs|unittest"
)
_PATHS = (
    "path", "file_path", "filePath", "absolute_path", "filename", "file", "target_file", "notebook_path",
    "relative_path", "paths", "files", "file_paths",
)  # fmt: skip
_CONTENTS = (
    "content", "contents", "file_text", "new_str", "new_string", "newString", "new", "new_source", "insert_text",
    "code_edit", "text", "replacement",
)  # fmt: skip
_COMMANDS = ("command", "cmd", "script", "keystrokes", "commands", "bash_command", "shell_command", "chars")
_CODES = ("code", "source_code", "python_code")
_PATCHES = ("patch", "patchText", "patch_text", "diff", "input")
_DIRECTORIES = ("workdir", "cwd", "working_directory", "working_dir", "dir_path")
_EDITS = re.compile(r"write|edit|create|replace|patch|insert|append|delete|remove|move|undo|update", re.IGNORECASE)
_LOOKS = re.compile(r"(?:glob|ls|list|list_?dir(?:ectory)?|find|tree|stat)\w*\Z", re.IGNORECASE)
_PATCHED = re.compile(r"^(?:\*\*\* (?:Add|Update|Delete) File: |\*\*\* Move to: |\+\+\+ (?:b/)?)(\S.*)$", re.MULTILINE)
_RUNNERS = re.compile(r"(?:python|pypy|sh|bash|dash|zsh|ksh|source|\.|perl|ruby|node)[\d.]*\Z")


@once
def deeds(rollout: Rollout) -> list[tuple[Action, list[Operation]]]:
    """Return the calls that touch anything a review asks about, each with what it does, in their order."""
    return list(_read(rollout))


def prompted(rollout: Rollout) -> str:
    """Return all that the agent was told to do."""
    try:
        events = rollout.events
    except RecordError:
        return ""
    told = (event for event in events if event.get("type") == "user_message")
    return "\n".join(text_of(event.get("text") or event.get("content")) for event in told)


def _read(rollout: Rollout) -> Iterator[tuple[Action, list[Operation]]]:
    try:
        workdir = rollout.config.get("workdir")
    except RecordError:
        workdir = None
    cwd = workdir if isinstance(workdir, str) and workdir.startswith("/") else None
    scripts: dict[str, str] = {}  # by name: texts that the agent wrote to a file and has not run yet
    for action in actions(rollout):
        if action.may_mention(_MARKS) or (scripts and any(name in text_of(action.arguments) for name in scripts)):
            found = list(_with_scripts(_of_action(action, cwd), scripts, cwd))
            if found:
                yield action, found


def _with_scripts(found: Iterator[Operation], scripts: dict[str, str], cwd: str | None) -> Iterator[Operation]:
    """Yield operations, and after one that runs a file of the agent's own what that file does."""
    for operation in found:
        yield operation
        if operation.kind == "write" and operation.content and _MARKS.search(operation.content):
            scripts[posixpath.basename(operation.path)] = operation.content
        name = ""
        if operation.kind == "read" and _RUNNERS.match(operation.program):
            name = posixpath.basename(operation.path)
        elif operation.kind == "run" and operation.words and "/" in operation.words[0]:
            name = posixpath.basename(operation.words[0])
        content = scripts.pop(name, None) if name else None
        if content is not None:
            shell = name.endswith(("sh", ".bash")) or "sh" in content.partition("\n")[0][:30]
            yield from operations(content, cwd) if shell else [Operation("code", name, content=content)]


def _of_action(action: Action, cwd: str | None) -> Iterator[Operation]:
    """Yield what a call does, by the names of its arguments: agents' tools differ in little else."""
    arguments = action.arguments
    if isinstance(arguments, str):
        patched = list(_patched(action.tool, arguments))
        yield from patched or operations(arguments, cwd)
        return
    if isinstance(arguments, list):
        arguments = {"commands": arguments}
    if not isinstance(arguments, dict):
        return
    here = next((arguments[key] for key in _DIRECTORIES if isinstance(arguments.get(key), str)), cwd)
    paths = [path for key in _PATHS for path in _names(arguments.get(key))]
    for path in paths:
        yield from _file(action.tool, path, arguments, here)
    for key in _COMMANDS:
        for command in _command_texts(arguments.get(key)):
            # Beside a path a single word is what an editor is to do with it.
            if not paths or not command.isidentifier():
                yield from operations(command, here)
    for key in _PATCHES:
        if isinstance(arguments.get(key), str):
            yield from _patched(action.tool, arguments[key])
    for key in _CODES:
        if isinstance(arguments.get(key), str):
            yield Operation("code", action.tool, content=arguments[key])


def _names(value: Any) -> Iterator[str]:
    """Yield the paths in an argument: one, or a list of them or of objects with one."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            yield from (item[key] for key in _PATHS if isinstance(item.get(key), str))


def _file(tool: str, path: str, arguments: dict[str, Any], cwd: str | None) -> Iterator[Operation]:
    if not path.startswith("/") and cwd is not None:
        path = posixpath.join(cwd, path)
    path = posixpath.normpath("/" + path.lstrip("/")) if path.startswith("/") else path
    verb = arguments.get("command") if isinstance(arguments.get("command"), str) else tool
    texts = [arguments[key] for key in _CONTENTS if isinstance(arguments.get(key), str)]
    edits = arguments.get("edits")
    if isinstance(edits, list):
        texts += [text_of({key: mapping(edit).get(key) for key in _CONTENTS}) for edit in edits]
    if texts or _EDITS.search(str(verb)):
        yield Operation("write", tool, path, content="\n".join(texts))
    elif not _LOOKS.match(tool) and not (verb == "view" and path.count("/") == 1):
        # An editor's view of a directory is a list of its files.
        yield Operation("read", tool, path)


def _patched(tool: str, patch: str) -> Iterator[Operation]:
    """Yield a write for each file that a patch names."""
    places = list(_PATCHED.finditer(patch))
    for number, match in enumerate(places):
        end = places[number + 1].start() if number + 1 < len(places) else len(patch)
        added = [line[1:] for line in patch[match.end() : end].split("\n") if line.startswith("+")]
        yield Operation("write", tool, match.group(1).strip(), content="\n".join(added))


def _command_texts(value: Any) -> Iterator[str]:
    """Yield the scripts in an argument: a text, the words of one command, or a list of commands."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and value and all(isinstance(word, str) for word in value):
        shell = re.search(r"(?:^|/)(?:ba|da|z|k)?sh\Z", value[0])
        option = next((n for n, word in enumerate(value) if re.fullmatch(r"-[a-z]*c", word)), None)
        if shell and option is not None and option + 1 < len(value):
            yield value[option + 1]
        else:
            # Several commands, or one whose words need no quotes.
            yield "\n".join(value) if any(" " in word for word in value[:1]) else " ".join(map(_quoted, value))
    elif isinstance(value, list | dict):
        for item in value if isinstance(value, list) else [value]:
            for key in _COMMANDS if isinstance(item, dict) else ():
                yield from _command_texts(item.get(key))


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[\w@%+=:,./*?-]+", word) else "'" + word.replace("'", "'\\''") + "'"
