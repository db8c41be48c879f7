"""A dataset repository in memory: commits, branches, pull requests, and large files by their digest."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

# Files of at least so many bytes are large; of the real hub it is 10 MB, or what .gitattributes names.
LARGE = 4096


class RefusedError(Exception):
    """What the hub answers instead: a status, a code, a sentence."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass
class Commit:
    """A whole tree: each path with its content, None where a large file's is in the store."""

    id: str
    message: str
    tree: dict[str, Entry]
    changed: list[str]


@dataclass(frozen=True)
class Entry:
    """A file of a commit: `oid` is git's id, of a large file its SHA-256."""

    oid: str
    size: int
    content: bytes | None


@dataclass
class Repo:
    """A repository; `objects` are the large files that were uploaded, also without a commit.

    `stored_again` are those of them that a client sent though they were there.
    """

    name: str
    private: bool = False
    commits: dict[str, Commit] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    pulls: dict[int, dict[str, Any]] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    stored_again: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.refs["main"] = self._commit({}, "initial commit", []).id

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """Return each file's content at a revision."""
        tree = self.at(revision).tree
        return {path: self.objects[each.oid] if each.content is None else each.content for path, each in tree.items()}

    def log(self, revision: str = "main") -> list[Commit]:
        """Return the commits of all branches in the order they were made, the first one left out."""
        assert revision in self.refs
        return list(self.commits.values())[1:]

    def at(self, revision: str) -> Commit:
        """Return the commit of a branch, a pull request or an id."""
        found = self.commits.get(self.refs.get(revision, revision))
        if found is None:
            raise RefusedError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return found

    def put(self, path: str, content: bytes, revision: str = "main") -> None:
        """Commit a file, as somebody else would."""
        oid = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        tree = {**self.at(revision).tree, path: Entry(oid, len(content), content)}
        self.refs[revision] = self._commit(tree, f"put {path}", [path]).id

    def upload_mode(self, file: dict[str, Any], revision: str) -> dict[str, Any]:
        """Say of a file that a client is about to commit how it has to come."""
        path = file["path"]
        known = self.at(revision).tree.get(path)
        return {
            "path": path,
            "uploadMode": "lfs" if file["size"] >= LARGE else "regular",
            "shouldIgnore": self.ignores(path, revision),
            "oid": known.oid if known else None,
        }

    def ignores(self, path: str, revision: str) -> bool:
        """Tell whether the repository's .gitignore names a path."""
        entry = self.at(revision).tree.get(".gitignore")
        patterns = entry.content.decode().split() if entry and entry.content else []
        return any(fnmatch(path.rsplit("/", 1)[-1], pattern) for pattern in patterns)

    def commit(self, revision: str, lines: list[dict[str, Any]]) -> Commit:
        """Do what the lines of a commit request say, or nothing of it."""
        head = self.at(revision)
        if revision not in self.refs:
            raise RefusedError(404, f"{revision} is no branch", "RevisionNotFound")
        header = lines[0]["value"]
        if header.get("parentCommit", head.id) != head.id:
            raise RefusedError(412, "A commit has happened since. Please refresh and try again.")
        tree, changed = dict(head.tree), []
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                content = base64.b64decode(value["content"])
                oid = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
                tree[value["path"]] = Entry(oid, len(content), content)
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.objects:
                    raise RefusedError(400, f"Your push was rejected because an LFS pointer is missing: {value['oid']}")
                tree[value["path"]] = Entry(value["oid"], value["size"], None)
            else:
                raise RefusedError(400, f"no operation {line['key']!r} is known here")
            changed.append(value["path"])
        if not changed:
            raise RefusedError(400, "an empty commit")
        made = self._commit(tree, header["summary"], changed)
        self.refs[revision] = made.id
        return made

    def open_pull(self, title: str, description: str) -> int:
        """Open a pull request on the newest commit and return its number."""
        number = len(self.pulls) + 1
        self.pulls[number] = {"title": title, "description": description, "status": "draft", "isPullRequest": True}
        self.refs[f"refs/pr/{number}"] = self.refs["main"]
        return number

    def _commit(self, tree: dict[str, Entry], message: str, changed: list[str]) -> Commit:
        known = "".join(f"{path} {entry.oid}\n" for path, entry in sorted(tree.items()))
        whole = f"{len(self.commits)} {message}\n{known}".encode()
        made = Commit(hashlib.sha1(whole, usedforsecurity=False).hexdigest(), message, tree, changed)
        self.commits[made.id] = made
        return made
