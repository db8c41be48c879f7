"""Write manifests: the fields of the contract alone, in its order, in TOML that reads like the catalogue's own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_benchflow.catalog.directory import FILE_NAME
from pytest_benchflow.catalog.load import CONTRACT_FIELDS, Manifest, read_toml
from pytest_benchflow.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


def export(manifests: Iterable[Manifest], directory: Path, *, force: bool = False) -> list[Path]:
    """Write each manifest to acp/NAME/manifest.toml below a directory and return the files.

    Raises: UsageError when the directory holds anything and `force` is not set, a link leads out of it, or it cannot
    be written to.
    """
    if directory.exists() and (not directory.is_dir() or (not force and any(directory.iterdir()))):
        raise UsageError(
            f"{directory} is {'not empty' if directory.is_dir() else 'no directory'}; name a new directory, "
            "or pass --force to write over what is there"
        )
    written = []
    for manifest in manifests:
        # From the file: a value that is not given stays not given.
        values = read_toml(manifest.file)
        file = directory / "acp" / manifest.name / FILE_NAME
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            _check_own(file, directory)
            file.write_text(manifest_text(values), "utf-8")
        except OSError as error:
            raise UsageError(f"{file} cannot be written: {error.strerror}; name a directory that can be") from None
        written.append(file)
    return written


def _check_own(file: Path, directory: Path) -> None:
    """Refuse to write through a link to what lies elsewhere. Raises: UsageError naming the link."""
    for place in (file, file.parent, file.parent.parent):
        if place.is_symlink():
            raise UsageError(
                f"{place} is a link, and files elsewhere are not written over; remove it, or name another "
                f"directory than {directory}"
            )


def manifest_text(values: Mapping[str, Any]) -> str:
    """Return the contract's fields among some values as TOML; a table comes last."""
    given = [(name, values[name]) for name in CONTRACT_FIELDS if name in values]
    lines = [f"{name} = {_toml(value)}" for name, value in given if not isinstance(value, dict)]
    for name, table in given:
        if isinstance(table, dict):
            lines += ["", f"[{name}]", *(f"{_key(key)} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if not isinstance(value, str):
        return str(value)
    # A script stays readable where a literal string can hold it as it is.
    plain = all(each in "\n\t" or each.isprintable() for each in value)
    if "\n" in value and plain and "'''" not in value and not value.endswith("'"):
        return f"'''\n{value}'''"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else json.dumps(key, ensure_ascii=False).replace("\x7f", "\\u007f")
