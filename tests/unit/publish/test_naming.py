"""How directories of rollouts are named, and which templates are refused."""

from __future__ import annotations

import pytest

from pytest_benchflow.errors import UsageError
from pytest_benchflow.publish.naming import DEFAULT, FIELDS, Template

ASKED = {
    "dataset": "skills",
    "model": "openrouter/z-ai/glm-5",
    "agent": "openhands",
    "agent_version": "1.2",
    "effort": "high",
    "canaries": "",
    "skills": "with-skill",
    "task": "org/csv report",
    "trial": "2",
    "job": "ramp",
    "id8": "0123abcd",
}


def test_the_default_path_and_that_of_a_canary() -> None:
    template = Template.of(DEFAULT)
    model = "openrouter-z-ai-glm-5__openhands-high"
    assert template.path(ASKED) == f"progress/skills/{model}/with-skill/org-csv-report__0123abcd"
    canary = {**ASKED, "canaries": "canaries"}
    assert template.path(canary) == f"progress/skills/{model}/canaries/with-skill/org-csv-report__0123abcd"
    assert template.parts_canaries


@pytest.mark.parametrize(
    "value", ["../../etc", "..", "a/../../b", "/root", ".git", "{id8}", "\x1b[2J", "é/ü", "-x", ""]
)
@pytest.mark.parametrize("name", [name for name in FIELDS if name != "canaries"])
def test_no_value_adds_or_leaves_a_directory(name: str, value: str) -> None:
    path = Template.of(DEFAULT).path({**ASKED, name: value})
    parts = path.split("/")
    assert len(parts) == 5
    assert all(part and not part.startswith(".") and part.isascii() for part in parts)
    assert set(path) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/")


def test_a_template_of_ones_own() -> None:
    template = Template.of("runs/{job}/{agent}@{agent_version}/{task}-{trial}-{id8}".replace("@", "_"))
    assert template.path(ASKED) == "runs/ramp/openhands_1.2/org-csv-report-2-0123abcd"
    assert not template.parts_canaries
    assert template.base("skills") == "runs"
    assert Template.of(DEFAULT).base("my set") == "progress/my-set"
    assert Template.of(DEFAULT).base(None) == "progress"
    assert Template.of("{task}__{id8}").base("skills") == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a/{task}", "has no {id8}"),
        ("{id8}/{nobody}", "there is no field {nobody}; it takes {dataset}, {model}, "),
        ("{id8}/{}", "there is no field {}; it takes {dataset}"),
        ("{id8}/{task.__class__}", "there is no field {task.__class__}"),
        ("{id8}/{task!r}", "a field is its name alone, as in {task}"),
        ("{id8}/{task:>90}", "a field is its name alone, as in {task}"),
        ("{id8}/{task", "expected '}'"),
        ("/{id8}", "an empty part"),
        ("a//{id8}", "an empty part"),
        ("{id8}/", "an empty part"),
        ("../{id8}", ".. is no name of a directory"),
        (".git/{id8}", ".git is no name of a directory"),
        ("a b/{id8}", "'a b' is not taken"),
        ("a\\b/{id8}", "is not taken"),
        ("x{canaries}/{id8}", "{canaries} stands between slashes"),
    ],
)
def test_templates_that_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Template.of(text)
    assert str(caught.value).startswith("--path-template ")
    assert said in str(caught.value)
