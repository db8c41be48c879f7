"""Take secrets out of files that were copied from a sandbox: a verifier may print what it was given."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.records.redact import Redactor

_LARGEST = 256 * 1024 * 1024


def scrub(root: Path, redactor: Redactor) -> list[str]:
    """Redact every regular file below `root` in place; bytes that are no secret stay as they are.

    Returns a warning for each file that is too large to be searched; it is removed.
    """
    warnings = []
    for path in sorted(root.rglob("*")) if root.is_dir() else []:
        if path.is_symlink() or not path.is_file():
            continue
        if path.stat().st_size > _LARGEST:
            path.unlink()
            warnings.append(f"{path.name} was not kept: above {_LARGEST >> 20} MiB no file is searched for secrets")
            continue
        # Undecodable bytes travel as surrogates and come back as they were.
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        clean = redactor.text(text)
        if clean != text:
            path.write_bytes(clean.encode("utf-8", "surrogateescape"))
    return warnings
