"""The instructions of a Dockerfile, as its parser understands them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_benchflow.tasks._dockerwords import Heredoc


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction; `text` is what follows the keyword, continued lines joined, nothing replaced."""

    line: int  # 1-based, of the keyword
    keyword: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class From(Instruction):
    """Begin a stage."""

    image: str
    alias: str | None = None
    platform: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(Instruction):
    """COPY or ADD (`keyword` tells); a source may be a heredoc, whose text is in `heredocs` and not in `sources`."""

    sources: tuple[str, ...]
    target: str
    heredocs: tuple[Heredoc, ...] = ()
    chown: str | None = None
    chmod: str | None = None
    from_stage: str | None = None
    exclude: tuple[str, ...] = ()
    flags: Mapping[str, str] = field(default_factory=dict)  # every other flag, such as link or checksum


@dataclass(frozen=True, slots=True, kw_only=True)
class Workdir(Instruction):
    """Change the working directory; a relative path is relative to the one before."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Env(Instruction):
    """Set variables of the image."""

    values: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Label(Instruction):
    """Set labels of the image."""

    values: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arg(Instruction):
    """Declare build arguments; None: declared without a value and not given."""

    values: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Instruction):
    """RUN, CMD or ENTRYPOINT: `argv` in the JSON form, else `shell` as a shell would read it."""

    argv: tuple[str, ...] | None = None
    shell: str | None = None
    heredocs: tuple[Heredoc, ...] = ()
    flags: tuple[str, ...] = ()  # of RUN: --mount=…, --network=…, as written


@dataclass(frozen=True, slots=True, kw_only=True)
class User(Instruction):
    """Change the user of what follows: a name or number, with an optional group after a colon."""

    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expose(Instruction):
    """Name ports that the image serves."""

    ports: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume(Instruction):
    """Name directories that are volumes."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell(Instruction):
    """Change the shell of the shell forms that follow."""

    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthcheckTest(Instruction):
    """Tell how the image is probed; `command` None switches an inherited probe off."""

    command: Command | None
    flags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopsignal(Instruction):
    """Name the signal that ends the image's process."""

    signal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Onbuild(Instruction):
    """Hold an instruction back until the image is built upon; nothing in it is replaced."""

    instruction: Instruction


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintainer(Instruction):
    """Name who keeps the image (deprecated)."""

    name: str
