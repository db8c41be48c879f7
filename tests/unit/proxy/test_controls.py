"""A body without what an agent may not steer by is, in all else, the agent's bytes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from pytest_benchflow.proxy import _controls
from pytest_benchflow.proxy._controls import CONTROLS
from pytest_benchflow.proxy.script import ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from tests.unit.proxy.door import door, run

if TYPE_CHECKING:
    from pathlib import Path


def test_all_but_the_controls_of_a_body_passes_byte_by_byte(tmp_path: Path) -> None:
    body = (
        b'{ "temperature" : 1.50, "api_base":{"x":[1,"}\\""]} ,\r\n '
        b'"messages":[{"content":"\\u00e9 \xc3\xa9"}] ,"num_retries": 3 }\n'
    )

    async def work() -> None:
        upstream = ScriptedUpstream([ScriptTurn(text="hello")])
        async with door(tmp_path, upstream) as agent:
            assert (await agent.post(body)).status == 200
            (record,) = agent.records()
        kept = body.replace(b', "api_base":{"x":[1,"}\\""]}', b"").replace(b' ,"num_retries": 3', b"")
        assert upstream.requests[-1].body == kept
        assert record["metadata"]["stripped"] == ["api_base", "num_retries"]

    run(work())


NAMES = st.sampled_from(["a", "model", "num_retries", "api_base", 'q"\\', "é", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=9,
)


@given(
    st.dictionaries(NAMES, VALUES, max_size=6),
    st.sampled_from([None, 2]),
    st.sampled_from([(",", ":"), (" ,\t", " :\r\n")]),
    st.booleans(),
)
def test_an_edited_body_says_what_is_left_of_it(
    body: dict[str, Any], indent: int | None, signs: tuple[str, str], plain: bool
) -> None:
    raw = json.dumps(body, indent=indent, separators=signs, ensure_ascii=plain).encode(errors="surrogatepass")
    wanted = {name: value for name, value in body.items() if name not in CONTROLS} | {"model": "m/é"}
    assert json.loads(_controls.edit(raw, drop=CONTROLS, replace={"model": "m/é"})) == wanted
    assert _controls.edit(raw) == raw
