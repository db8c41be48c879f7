"""Two manifests are compared byte for byte: one character in any field is found, shown and placed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.catalog.compare import ABSENT, Difference, compare, visible
from pytest_benchflow.catalog.load import CONTRACT_FIELDS, load_manifest, read_toml, shipped
from pytest_benchflow.catalog.write import manifest_text
from pytest_benchflow.errors import UsageError
from pytest_benchflow.registry import shipped as shipped_names

if TYPE_CHECKING:
    from pathlib import Path

# Every field of the contract, none of them at its default.
FULL: dict[str, Any] = {
    "contract_version": "1.0",
    "name": "courier",
    "description": "An invented agent",
    "install_cmd": "set -eu\necho courier 1.2",
    "launch_cmd": 'set -eu\nexec "$HOME/bin/courier" acp',
    "protocol": "acp",
    "api_protocol": "openai-responses",
    "acp_model_format": "provider/model",
    "supports_acp_set_model": False,
    "requires_env": ["COURIER_KEY", "COURIER_TENANT"],
    "install_timeout": 1200,
    "env_mapping": {"BENCHFLOW_PROVIDER_API_KEY": "COURIER_KEY", "BENCHFLOW_PROVIDER_MODEL": "COURIER_MODEL"},
    "default_model": "courier-large",
    "skill_paths": ["$HOME/.courier/skills", "$WORKSPACE/skills"],
    "home_dirs": [".courier", ".cache/courier"],
    "aliases": ["post", "mail"],
}


def one_character_off(value: Any) -> Any:
    """Return a value of the same type that a single key stroke makes of it."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, list):
        return [*value[:-1], one_character_off(value[-1])]
    if isinstance(value, dict):
        key = next(iter(value))
        return {**value, key: one_character_off(value[key])}
    return value[:-1] + ("x" if value[-1] != "x" else "y")


def differences(tmp_path: Path, here: dict[str, Any], there: dict[str, Any]) -> tuple[Difference, ...]:
    files = []
    for side, values in (("here", here), ("there", there)):
        files.append(tmp_path / f"{side}.toml")
        files[-1].write_text(manifest_text(values), "utf-8")
    return compare(*map(load_manifest, files))


def changed(tmp_path: Path, **changes: Any) -> Difference:
    """Return the one difference that changes of the other side make."""
    (found,) = differences(tmp_path, FULL, FULL | changes)
    return found


def given() -> list[Any]:
    """Return each field of each manifest of the catalogue, and of one that has them all."""
    manifests = [FULL]
    for name in shipped_names("agents"):
        if manifest := shipped(name):
            manifests.append({key: read_toml(manifest.file).get(key) for key in CONTRACT_FIELDS})
    return [
        pytest.param(values, field, id=f"{values['name']}-{field}" if values is not FULL else f"invented-{field}")
        for values in (
            {key: value for key, value in each.items() if value not in (None, [], {}, "")} for each in manifests
        )
        for field in values
    ]


def test_the_invented_manifest_has_every_field() -> None:
    assert set(FULL) == set(CONTRACT_FIELDS)


@pytest.mark.parametrize(("values", "field"), given())
def test_one_character_is_red(tmp_path: Path, values: dict[str, Any], field: str) -> None:
    assert differences(tmp_path, values, values) == ()
    try:
        found = differences(tmp_path, values, {**values, field: one_character_off(values[field])})
    except UsageError as error:
        # Another version of the contract or another protocol is refused before anything is compared.
        assert field in ("contract_version", "protocol")
        assert field in str(error)
    else:
        assert [each.field for each in found] == [field]
        assert found[0].here != found[0].there


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("a b\tc\n", "a·b→c⏎", id="blanks"),
        pytest.param("a\u00a0b\u2003c", "a\\u{a0}b\\u{2003}c", id="other-blanks"),
        pytest.param("a\rb\x1b[31m", "a\\u{d}b\\u{1b}[31m", id="control"),
        pytest.param("a\u200bb\u202ec", "a\\u{200b}b\\u{202e}c", id="invisible"),
        pytest.param("a·b", "a\\u{b7}b", id="what-stands-for-a-blank"),
        pytest.param("größer", "größer", id="letters"),
    ],
)
def test_white_space_is_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_the_first_difference_is_placed_and_shown_on_both_sides(tmp_path: Path) -> None:
    found = changed(tmp_path, launch_cmd=FULL["launch_cmd"].replace('" acp', '"\tacp'))
    assert found.lines() == [
        "launch_cmd: line 2, column 25",
        '  here:  set·-eu⏎exec·"$HOME/bin/courier"▸·acp',
        '  there: set·-eu⏎exec·"$HOME/bin/courier"▸→acp',
    ]


def test_a_text_that_goes_on_is_shown_with_its_end(tmp_path: Path) -> None:
    found = changed(tmp_path, launch_cmd=FULL["launch_cmd"] + "\n")
    assert (found.here[-5:], found.there[-1]) == ("(end)", "⏎")


def test_a_long_text_is_cut_around_the_difference(tmp_path: Path) -> None:
    (found,) = differences(
        tmp_path,
        FULL | {"install_cmd": "a" * 500 + "1" + "b" * 500},
        FULL | {"install_cmd": "a" * 500 + "2" + "b" * 500},
    )
    assert found.place == "line 1, column 501"
    assert found.here.replace("▸1", "▸2") == found.there
    assert found.here.startswith("…aaa")
    assert found.here.endswith("bbb…")


@pytest.mark.parametrize(
    ("changes", "place", "there"),
    [
        pytest.param({"aliases": ["post"]}, "item 2", ABSENT, id="item-gone"),
        pytest.param(
            {"home_dirs": [".courie", ".cache/courier"]}, "item 1, line 1, column 8", "(end)", id="item-changed"
        ),
        pytest.param({"env_mapping": {}}, "key BENCHFLOW_PROVIDER_API_KEY", ABSENT, id="key-gone"),
        pytest.param({"install_timeout": 900}, "", "900", id="number"),
        pytest.param({"supports_acp_set_model": True}, "", "True", id="truth"),
    ],
)
def test_lists_and_tables_name_what_differs(tmp_path: Path, changes: dict[str, Any], place: str, there: str) -> None:
    found = changed(tmp_path, **changes)
    assert found.place == place
    assert found.there.endswith(there)


@pytest.mark.parametrize(
    ("changes", "loss"),
    [
        pytest.param({"install_timeout": 900}, "timeout lowered there: 900 s instead of 1200 s", id="timeout-there"),
        pytest.param({"install_timeout": 1201}, "timeout lowered here: 1200 s instead of 1201 s", id="timeout-here"),
        pytest.param(
            {"requires_env": ["COURIER_KEY"]}, "check dropped: COURIER_TENANT is not required there", id="check"
        ),
        pytest.param({"default_model": "courier-small"}, None, id="neither"),
    ],
)
def test_what_weakens_is_named(tmp_path: Path, changes: dict[str, Any], loss: str | None) -> None:
    assert changed(tmp_path, **changes).weakens == loss


@pytest.mark.parametrize(
    ("changes", "effect"),
    [
        pytest.param({"description": "Words"}, False, id="prose"),
        pytest.param({"aliases": ["mail", "post"]}, False, id="order-of-a-set"),
        pytest.param({"aliases": ["mail"]}, True, id="a-name-less"),
        pytest.param({"skill_paths": ["$WORKSPACE/skills", "$HOME/.courier/skills"]}, True, id="order-of-places"),
    ],
)
def test_what_has_no_effect_is_known(tmp_path: Path, changes: dict[str, Any], effect: bool) -> None:
    assert changed(tmp_path, **changes).effect is effect


def test_a_key_of_a_newer_contract_counts_too(tmp_path: Path) -> None:
    newer = manifest_text(FULL | {"contract_version": "1.1"})
    (tmp_path / "a.toml").write_text('colour = "red"\n' + newer, "utf-8")
    (tmp_path / "b.toml").write_text(newer, "utf-8")
    (found,) = compare(load_manifest(tmp_path / "a.toml"), load_manifest(tmp_path / "b.toml"))
    assert found.lines() == ["colour", '  here:  "red"', f"  there: {ABSENT}"]


def test_the_host_table_is_nobody_elses_concern(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(manifest_text(FULL) + '[host]\nversion = "3"\n', "utf-8")
    (tmp_path / "b.toml").write_text(manifest_text(FULL), "utf-8")
    assert compare(load_manifest(tmp_path / "a.toml"), load_manifest(tmp_path / "b.toml")) == ()
