"""Which names may lead into a private network, and who says so."""

from __future__ import annotations

import ipaddress

import pytest

from pytest_benchflow.errors import UsageError
from pytest_benchflow.sandboxes._local import base
from pytest_benchflow.sandboxes._private import VARIABLE, check_private_hosts, why_private
from pytest_benchflow.sandboxes.docker import backend as docker
from pytest_benchflow.sandboxes.local import backend as local

PRIVATE = ("10.1.2.3", "172.31.0.1", "192.168.0.1", "100.64.0.1", "fd12::1", "::ffff:10.1.2.3", "64:ff9b::a01:203")
OTHERS = ("203.0.113.7", "198.18.0.1", "172.32.0.1", "2001:db8::1", "64:ff9b::cb00:7107")


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)


@pytest.mark.parametrize("address", PRIVATE)
def test_a_name_of_the_internet_leads_into_no_private_network(address: str) -> None:
    asked = ipaddress.ip_address(address)
    for listed in (False, True):
        reason = why_private("pypi.org", asked, listed=listed)
        assert reason == f"{asked} is in a private network, and {VARIABLE} names neither it nor pypi.org"


@pytest.mark.parametrize("address", OTHERS)
def test_other_addresses_are_no_matter_of_it(address: str) -> None:
    assert why_private("pypi.org", ipaddress.ip_address(address)) is None


@pytest.mark.parametrize(
    ("host", "open_"),
    [
        pytest.param("10.1.2.3", True, id="an-address"),
        pytest.param("db", True, id="one-word"),
        pytest.param("db.corp.internal.", True, id="below-internal"),
        pytest.param("printer.local", True, id="below-local"),
        pytest.param("nas.home.arpa", True, id="below-home"),
        pytest.param("arpa.example", False, id="for-sale"),
        pytest.param("internal.example.com", False, id="for-sale-with-a-word-in-it"),
        pytest.param("db.notinternal", False, id="a-word-that-ends-alike"),
    ],
)
def test_a_task_opens_what_it_lists_where_no_stranger_can_own_the_name(host: str, open_: bool) -> None:
    address = ipaddress.ip_address("10.1.2.3")
    assert (why_private(host, address, listed=True) is None) is open_
    assert why_private(host, address) is not None


@pytest.mark.parametrize(
    ("named", "open_"),
    [
        pytest.param("mirror.example.com", True, id="the-name"),
        pytest.param("x.test, *.example.com", True, id="all-below-a-name"),
        pytest.param("10.1.0.0/16", True, id="the-network"),
        pytest.param("10.1.2.3", True, id="the-address"),
        pytest.param("example.com", False, id="the-name-above"),
        pytest.param("10.2.0.0/16 fd00::/8", False, id="other-networks"),
    ],
)
def test_the_owner_of_the_machine_opens_what_they_name(
    monkeypatch: pytest.MonkeyPatch, named: str, open_: bool
) -> None:
    monkeypatch.setenv(VARIABLE, named)
    check_private_hosts()
    assert (why_private("mirror.example.com", ipaddress.ip_address("10.1.2.3")) is None) is open_


def test_where_this_machine_gets_packages_is_open_to_installations_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:secret@mirror.example.com:8443/simple")
    monkeypatch.setattr(base, "apt_sources", lambda: "deb [trusted=yes] http://archive.example.com/debian any main\n")
    address = ipaddress.ip_address("10.1.2.3")
    for host in ("mirror.example.com", "archive.example.com"):
        assert why_private(host, address, setup=True) is None
        assert why_private(host, address, listed=True)
    assert why_private("other.example.com", address, setup=True)


@pytest.mark.parametrize("wrong", ["10.0.0.0/99", "https://mirror.example.com", "*", "10.1.2.300", "a b/c"])
def test_what_is_no_host_and_no_network_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setenv(VARIABLE, wrong)
    for backend in (local, docker):
        with pytest.raises(UsageError, match=rf"{VARIABLE} holds .*; allowed: names"):
            backend.check()
