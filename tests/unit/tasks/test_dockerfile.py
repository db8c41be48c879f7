from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.errors import TaskError
from pytest_benchflow.tasks.dockerfile import parse_dockerfile
from pytest_benchflow.tasks.instructions import (
    Arg,
    Command,
    Copy,
    Env,
    Expose,
    From,
    HealthcheckTest,
    Label,
    Maintainer,
    Onbuild,
    Shell,
    Stopsignal,
    User,
    Volume,
    Workdir,
)

if TYPE_CHECKING:
    from pytest_benchflow.tasks.instructions import Instruction


def parsed(text: str, **args: str) -> list[Instruction]:
    return parse_dockerfile(text, args)


def last(text: str, **args: str) -> Any:
    """Return what the last instruction of a stage was understood as."""
    return parse_dockerfile(f"FROM debian\n{text}", args)[-1]


@pytest.mark.parametrize(
    ("line", "kind", "expected"),
    [
        pytest.param("FROM debian:12", From, {"image": "debian:12", "alias": None}, id="from"),
        pytest.param("from debian as Base", From, {"image": "debian", "alias": "Base"}, id="from-as"),
        pytest.param("FROM --platform=linux/amd64 debian", From, {"platform": "linux/amd64"}, id="from-platform"),
        pytest.param("COPY a b /app/", Copy, {"sources": ("a", "b"), "target": "/app/", "keyword": "COPY"}, id="copy"),
        pytest.param("ADD a.tar /app", Copy, {"sources": ("a.tar",), "target": "/app", "keyword": "ADD"}, id="add"),
        pytest.param('COPY ["a b", "/app"]', Copy, {"sources": ("a b",), "target": "/app"}, id="copy-json"),
        pytest.param('COPY "a b" /app', Copy, {"sources": ("a b",), "target": "/app"}, id="copy-quoted"),
        pytest.param(r"COPY a\ b /app", Copy, {"sources": ("a b",), "target": "/app"}, id="copy-escaped"),
        pytest.param(
            "COPY --chown=1:2 --chmod=755 --from=base --link --exclude=*.md --exclude=*.txt a b",
            Copy,
            {
                "chown": "1:2",
                "chmod": "755",
                "from_stage": "base",
                "flags": {"link": ""},
                "exclude": ("*.md", "*.txt"),
                "sources": ("a",),
                "target": "b",
            },
            id="copy-flags",
        ),
        pytest.param("WORKDIR /a b", Workdir, {"path": "/a b"}, id="workdir"),
        pytest.param('WORKDIR "/a b"', Workdir, {"path": "/a b"}, id="workdir-quoted"),
        pytest.param(
            "ENV A=1 B='2 3' C=\"4 5\" D=6\\ 7",
            Env,
            {"values": {"A": "1", "B": "2 3", "C": "4 5", "D": "6 7"}},
            id="env",
        ),
        pytest.param("ENV A some words", Env, {"values": {"A": "some words"}}, id="env-old-form"),
        pytest.param("ENV A=", Env, {"values": {"A": ""}}, id="env-empty"),
        pytest.param("ENV A=b=c", Env, {"values": {"A": "b=c"}}, id="env-equals-in-value"),
        pytest.param('LABEL a.b="c d" e=f', Label, {"values": {"a.b": "c d", "e": "f"}}, id="label"),
        pytest.param("ARG A B=2", Arg, {"values": {"A": None, "B": "2"}}, id="arg"),
        pytest.param("RUN make  all", Command, {"shell": "make  all", "argv": None}, id="run"),
        pytest.param('RUN ["make", "all"]', Command, {"argv": ("make", "all"), "shell": None}, id="run-json"),
        pytest.param("RUN [ -e x ]", Command, {"shell": "[ -e x ]", "argv": None}, id="run-bracket"),
        pytest.param(
            "RUN --mount=type=cache,target=/c --network=none make",
            Command,
            {"shell": "make", "flags": ("--mount=type=cache,target=/c", "--network=none")},
            id="run-flags",
        ),
        pytest.param('CMD ["a"]', Command, {"argv": ("a",), "keyword": "CMD"}, id="cmd"),
        pytest.param("ENTRYPOINT a $B", Command, {"shell": "a $B", "keyword": "ENTRYPOINT"}, id="entrypoint"),
        pytest.param("USER ada:tea", User, {"user": "ada:tea"}, id="user"),
        pytest.param("EXPOSE 80 53/udp", Expose, {"ports": ("80", "53/udp")}, id="expose"),
        pytest.param('VOLUME ["/a", "/b"]', Volume, {"paths": ("/a", "/b")}, id="volume-json"),
        pytest.param("VOLUME /a /b", Volume, {"paths": ("/a", "/b")}, id="volume"),
        pytest.param('SHELL ["/bin/bash", "-c"]', Shell, {"argv": ("/bin/bash", "-c")}, id="shell"),
        pytest.param("HEALTHCHECK NONE", HealthcheckTest, {"command": None, "flags": {}}, id="healthcheck-none"),
        pytest.param(
            "HEALTHCHECK --interval=5s --retries=3 CMD true",
            HealthcheckTest,
            {"flags": {"interval": "5s", "retries": "3"}},
            id="healthcheck",
        ),
        pytest.param("STOPSIGNAL SIGINT", Stopsignal, {"signal": "SIGINT"}, id="stopsignal"),
        pytest.param("MAINTAINER Ada", Maintainer, {"name": "Ada"}, id="maintainer"),
    ],
)
def test_each_instruction_is_understood(line: str, kind: type[Instruction], expected: dict[str, Any]) -> None:
    instruction = last(line)
    assert isinstance(instruction, kind)
    assert {name: getattr(instruction, name) for name in expected} == expected
    assert instruction.line == 2


def test_a_probe_holds_its_command() -> None:
    assert last("HEALTHCHECK CMD curl -f x").command.shell == "curl -f x"
    assert last('HEALTHCHECK CMD ["curl", "x"]').command.argv == ("curl", "x")


def test_what_is_held_back_is_not_replaced() -> None:
    instruction = last("ENV A=1\nONBUILD COPY $A /app")
    assert isinstance(instruction, Onbuild)
    assert (instruction.instruction.keyword, instruction.instruction.text) == ("COPY", "$A /app")


def test_lines_go_on_past_comments_and_blanks() -> None:
    text = "FROM debian\n\n# one\nRUN a && \\\n  # two\n\n    b \\  \n  && c\nWORKDIR /app\n"
    _, run, workdir = parsed(text)
    assert isinstance(run, Command)
    assert isinstance(workdir, Workdir)
    assert run.shell == "a &&     b   && c"
    assert (run.line, workdir.line) == (4, 9)


def test_a_doubled_escape_ends_the_line() -> None:
    _, run, workdir = parsed("FROM debian\nRUN echo \\\\\nWORKDIR /app\n")
    assert (run.text, workdir.keyword) == ("echo \\\\", "WORKDIR")


def test_a_line_that_goes_on_at_the_end_of_the_file() -> None:
    assert last("RUN a \\").text == "a"


def test_windows_line_ends_and_a_byte_order_mark() -> None:
    assert [(each.keyword, each.text) for each in parsed("\ufeffFROM debian\r\nRUN a \\\r\n b\r\n")] == [
        ("FROM", "debian"),
        ("RUN", "a  b"),
    ]


@pytest.mark.parametrize(
    ("head", "line", "text"),
    [
        pytest.param("# syntax=docker/dockerfile:1\n# escape=`\n", "RUN a `\n b\\\n", "a  b\\", id="backtick"),
        pytest.param("# a note\n# escape=`\n", "RUN a \\\n b\n", "a  b", id="too-late-to-count"),
        pytest.param("#escape = \\\n", "RUN a \\\n b\n", "a  b", id="backslash"),
    ],
)
def test_the_escape_directive(head: str, line: str, text: str) -> None:
    assert parsed(f"{head}FROM debian\n{line}")[1].text == text


@pytest.mark.parametrize(
    ("word", "value"),
    [
        pytest.param("$A", "leaf", id="plain"),
        pytest.param("${A}s", "leafs", id="braces"),
        pytest.param("$A.$A", "leaf.leaf", id="twice"),
        pytest.param("$NONE", "", id="unset"),
        pytest.param("${NONE:-pot}", "pot", id="default"),
        pytest.param("${NONE:-${A}}", "leaf", id="nested-default"),
        pytest.param("${EMPTY:-pot}", "pot", id="default-for-empty"),
        pytest.param("${EMPTY-pot}", "", id="default-for-unset-only"),
        pytest.param("${NONE-pot}", "pot", id="default-without-colon"),
        pytest.param("${A:+pot}", "pot", id="alternative"),
        pytest.param("${NONE:+pot}", "", id="no-alternative"),
        pytest.param("${A:?must}", "leaf", id="demanded"),
        pytest.param(r"\$A", "$A", id="escaped"),
        pytest.param("'$A'", "$A", id="single-quotes"),
        pytest.param('"$A b"', "leaf b", id="double-quotes"),
        pytest.param(r'"a\"b\n"', r'a"b\n', id="escapes-in-quotes"),
        pytest.param("a$", "a$", id="lonely-dollar"),
        pytest.param("${P#*/}", "b/c.tar.gz", id="short-prefix"),
        pytest.param("${P##*/}", "c.tar.gz", id="long-prefix"),
        pytest.param("${P%.*}", "a/b/c.tar", id="short-suffix"),
        pytest.param("${P%%.*}", "a/b/c", id="long-suffix"),
        pytest.param("${P%.zip}", "a/b/c.tar.gz", id="suffix-not-there"),
        pytest.param("${P/?.tar/x}", "a/b/x.gz", id="replace-once"),
        pytest.param("${P//\\//-}", "a-b-c.tar.gz", id="replace-all"),
        pytest.param("${NONE%x}", "", id="edit-of-unset"),
    ],
)
def test_variables_are_replaced(word: str, value: str) -> None:
    assert last(f"ENV A=leaf EMPTY= P=a/b/c.tar.gz\nENV X={word}").values["X"] == value


@pytest.mark.parametrize("line", ["RUN echo $A", "CMD echo $A", "ENTRYPOINT echo $A"], ids=["run", "cmd", "entrypoint"])
def test_commands_are_left_to_the_shell(line: str) -> None:
    assert last(f"ENV A=1\n{line}").shell == "echo $A"


def test_one_line_sees_the_variables_as_they_were_before_it() -> None:
    assert last("ENV A=old\nENV A=new B=$A").values == {"A": "new", "B": "old"}


@pytest.mark.parametrize(
    ("text", "args", "image"),
    [
        pytest.param("ARG V=12\nFROM debian:$V", {}, "debian:12", id="default"),
        pytest.param("ARG V=12\nFROM debian:$V", {"V": "11"}, "debian:11", id="given"),
        pytest.param("ARG V\nFROM debian:${V:-10}", {}, "debian:10", id="fallback"),
        pytest.param("ARG I=debian\nARG T=$I:12\nFROM $T", {}, "debian:12", id="of-one-another"),
    ],
)
def test_arguments_choose_the_image(text: str, args: dict[str, str], image: str) -> None:
    instruction = parsed(text, **args)[-1]
    assert isinstance(instruction, From)
    assert instruction.image == image


@pytest.mark.parametrize(
    ("lines", "args", "path"),
    [
        pytest.param("ARG A=/one\nWORKDIR $A", {}, "/one", id="default"),
        pytest.param("ARG A=/one\nWORKDIR $A", {"A": "/two"}, "/two", id="given"),
        pytest.param("WORKDIR /$A", {"A": "two"}, "/", id="not-declared"),
        pytest.param("ENV A=/env\nARG A=/arg\nWORKDIR $A", {}, "/env", id="variable-wins"),
        pytest.param("ARG A=/arg\nENV A=/env\nWORKDIR $A", {"A": "/two"}, "/env", id="later-variable-wins"),
        pytest.param("ARG A=/one\nARG B=$A/b\nWORKDIR $B", {}, "/one/b", id="of-one-another"),
    ],
)
def test_arguments_count_inside_of_a_stage(lines: str, args: dict[str, str], path: str) -> None:
    assert last(lines, **args).path == path


def test_arguments_before_the_first_stage_must_be_declared_again() -> None:
    hidden, shown = parsed("ARG A=/one\nFROM debian\nWORKDIR /x$A\nARG A\nWORKDIR $A")[2::2]
    assert isinstance(hidden, Workdir)
    assert isinstance(shown, Workdir)
    assert (hidden.path, shown.path) == ("/x", "/one")


def test_a_stage_has_the_variables_of_the_stage_it_is_built_on() -> None:
    text = "FROM debian AS Base\nENV A=1\nARG B=2\nFROM base\nENV X=$A$B\nFROM debian\nENV X=$A$B\n"
    values = [dict(each.values) for each in parsed(text) if isinstance(each, Env)]
    assert values == [{"A": "1"}, {"X": "1"}, {"X": ""}]


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        pytest.param("COPY <<EOF /app/a\none $A\nEOF\n", "one leaf\n", id="replaced"),
        pytest.param("COPY <<'EOF' /app/a\none $A\nEOF\n", "one $A\n", id="quoted-name"),
        pytest.param('COPY <<"EOF" /app/a\none $A\nEOF\n', "one $A\n", id="double-quoted-name"),
        pytest.param("COPY <<-EOF /app/a\n\tone\n\t\ttwo\n\tEOF\n", "one\ntwo\n", id="tabs-stripped"),
        pytest.param('COPY <<EOF /app/a\nsay "it\'s" \\$A\nEOF\n', 'say "it\'s" $A\n', id="quotes-stay"),
        pytest.param("COPY <<EOF /app/a\n# no comment\n\nEOF\n", "# no comment\n\n", id="comments-stay"),
        pytest.param("COPY <<EOF /app/a\nEOF\n", "", id="empty"),
        pytest.param("ADD <<EOF /app/a\none \\\ntwo\nEOF\n", "one \\\ntwo\n", id="lines-are-not-joined"),
    ],
)
def test_a_file_is_written_in_place(lines: str, body: str) -> None:
    copy = last("ENV A=leaf\n" + lines)
    assert (copy.sources, copy.target) == ((), "/app/a")
    assert [(doc.name, doc.text) for doc in copy.heredocs] == [("EOF", body)]


def test_several_files_are_written_in_place_beside_others() -> None:
    copy = last("COPY <<one.txt plain.txt <<two.txt /app/\n1\none.txt\n2\ntwo.txt\n")
    assert copy.sources == ("plain.txt",)
    assert [(doc.name, doc.text) for doc in copy.heredocs] == [("one.txt", "1\n"), ("two.txt", "2\n")]


@pytest.mark.parametrize(
    ("line", "bodies"),
    [
        pytest.param("RUN <<EOF\nset -e\nmake $A\nEOF\n", ["set -e\nmake $A\n"], id="script"),
        pytest.param("RUN python3 <<'PY' && true\nprint(1)\nPY\n", ["print(1)\n"], id="into-a-program"),
        pytest.param("RUN cat << EOF > /a\nWORKDIR /not\nEOF\n", ["WORKDIR /not\n"], id="blank-before-the-name"),
        pytest.param("RUN a <<X && b <<Y\n1\nX\n2\nY\n", ["1\n", "2\n"], id="two"),
        pytest.param("RUN echo $((1 << 2))\n", [], id="shift"),
        pytest.param("RUN bash -c 'cat <<EOF'\n", [], id="in-quotes"),
        pytest.param("RUN cat <<< word\n", [], id="here-string"),
        pytest.param("RUN echo it's <<EOF\n", [], id="open-quote"),
    ],
)
def test_commands_hold_their_texts(line: str, bodies: list[str]) -> None:
    *_, run, workdir = parsed(f"FROM debian\n{line}WORKDIR /next\n")
    assert isinstance(run, Command)
    assert [doc.text for doc in run.heredocs] == bodies
    assert workdir.text == "/next"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", r"Dockerfile: there is no FROM; a Dockerfile begins with FROM", id="empty"),
        pytest.param("RUN a\nFROM debian\n", r"Dockerfile:1: RUN comes before FROM; only ARG may", id="no-stage"),
        pytest.param(
            "FROM debian\nBREW tea\n", r"Dockerfile:2: 'BREW' is no instruction; allowed: ADD, ARG", id="unknown"
        ),
        pytest.param("FROM debian\nRUN\n", r"Dockerfile:2: RUN stands alone; it needs an argument", id="bare"),
        pytest.param(
            "FROM a b\n", r"Dockerfile:1: FROM a b; allowed: FROM \[--platform=…\] image \[AS name\]", id="from"
        ),
        pytest.param("ARG V\nFROM $V\n", r"Dockerfile:2: FROM \$V names no image", id="no-image"),
        pytest.param("FROM debian\nCOPY a\n", r"Dockerfile:2: COPY a; it needs at least one source", id="copy"),
        pytest.param(
            "FROM debian\nCOPY 'a b\n", r"Dockerfile:2: COPY: a quote ' is opened and never closed", id="quote"
        ),
        pytest.param("FROM debian\nCOPY <<EOF /a\nx\n", r"Dockerfile:2: the heredoc <<EOF never ends", id="heredoc"),
        pytest.param(
            "FROM debian\nCOPY <<E /a\n${x^}\nE\n", r"Dockerfile:2: COPY: \$\{x\^\} is not", id="heredoc-text"
        ),
        pytest.param("FROM debian\nENV A\n", r"Dockerfile:2: ENV A; allowed: ENV NAME=value", id="env"),
        pytest.param("FROM debian\nENV A=1 b\n", r"'b' is no NAME=value; quote values that hold spaces", id="env-word"),
        pytest.param("FROM debian\nWORKDIR ${A\n", r"Dockerfile:2: WORKDIR: a \$\{ is never closed", id="brace"),
        pytest.param(
            "FROM debian\nWORKDIR ${A^^}\n", r"\$\{A\^\^\} is not supported; allowed: \$\{NAME\}", id="operator"
        ),
        pytest.param("FROM debian\nWORKDIR ${-}\n", r"\$\{-\} names no variable", id="no-variable"),
        pytest.param("FROM debian\nWORKDIR ${A:?say where}\n", r"A must have a value: say where", id="demanded"),
        pytest.param("FROM debian\nSHELL bash\n", r"SHELL bash; allowed: a JSON list such as", id="shell"),
        pytest.param(
            "FROM debian\nHEALTHCHECK true\n", r"allowed: HEALTHCHECK \[--flags\] CMD command, or NONE", id="probe"
        ),
        pytest.param("FROM debian\nONBUILD FROM x\n", r"allowed: any instruction but ONBUILD, FROM", id="onbuild"),
        pytest.param(f"FROM debian\nRUN {'[' * 9000}\n", r"Dockerfile:2: RUN is nested too deeply", id="deep-list"),
        pytest.param(f"FROM debian\nUSER {'${a:-' * 900}{'}' * 900}\n", r"USER is nested too deeply", id="deep-word"),
        pytest.param("# escape=x\nFROM debian\n", r"Dockerfile:1: escape is 'x'; it takes \\ or `", id="escape"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(text: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        parse_dockerfile(text)


def test_errors_name_the_file_they_are_told() -> None:
    with pytest.raises(TaskError, match=r"\Atea/Dockerfile:1: "):
        parse_dockerfile("BREW\n", name="tea/Dockerfile")


def test_variables_that_double_each_other_are_refused_before_they_fill_the_memory() -> None:
    lines = ["FROM debian", "ARG X=0123456789", *["ARG X=$X$X"] * 60, "WORKDIR /$X"]
    with pytest.raises(TaskError, match=r"more than \d+ characters"):
        parse_dockerfile("\n".join(lines))
