"""Names and reasons that others wrote to a lease table cannot control a terminal or a browser."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from spark_ehbalance.group.history import OwnershipChange
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.model import Handover, Lease, Member, Pin
from spark_ehbalance.lease_table.delta.store import DeltaStore
from spark_ehbalance.text import plain, plain_lines
from tests.ops.command import Command

#: A window title, a one-byte colour code, a carriage return, bidirectional overrides, invisible text, a new line.
HOSTILE = "\x1b]0;owned\x07\x1b[2k\x9b31m\rann\b\x7f\u202egnp.exe\u2066\u200b\u2028\n\x00[red]<img src=x>"


def named(what: str) -> str:
    return what + HOSTILE


@pytest.fixture
def hostile(table: Path) -> Path:
    """A table in which every text is hostile."""
    group = Group(named("ns"), named("hub"), named("group"))
    pin = Pin(named("cat"), by=named("operator"), why=named("why"))
    lease = Lease(named("0"), named("ann"), 3, handover=Handover(named("bob"), 1000, 1), pin=pin)
    member = Member(named("ann"), named("token"), 1, host=named("host"), strategy=named("strategy"))
    change = OwnershipChange(
        1, named("0"), named("PinTo"), named("ann"), named("bob"), 3, 4, by=named("me"), why=named("why")
    )
    claim = replace(change, event="Claim", owner_before=None)
    with DeltaStore(str(table)) as store:
        store.create(group)
        store.write(store.read(), replace(store.read(), leases={named("0"): lease}, members={named("ann"): member}))
        store.record([change, claim])
    return table


def harmless(text: str) -> bool:
    return all(character == "\n" or character.isprintable() for character in text)


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["status", "--partition", named("0")],
        ["history"],
        ["drain", named("nobody")],
        ["pin", named("0"), "--to", named("ann")],
        ["transfer", named("0"), "--to", named("nobody")],
        ["pin", named("1"), "--remove"],
        ["maintain"],
    ],
)
def test_commands_never_print_hostile_text_raw(ehbalance: Command, hostile: Path, arguments: list[str]) -> None:
    outcome = ehbalance(arguments[0], hostile, *arguments[1:])
    assert outcome.out + outcome.err
    assert harmless(outcome.out + outcome.err)


def test_tables_display_hostile_text_as_escapes(
    ehbalance: Command, hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "3000")
    assert ehbalance("status", hostile).out.count(plain(HOSTILE)) == 9
    assert ehbalance("history", hostile).out.count(plain(HOSTILE)) == 10


def test_json_contains_hostile_text_unchanged(ehbalance: Command, hostile: Path) -> None:
    for command in ("status", "history"):
        printed = ehbalance(command, hostile, "--json").out
        assert harmless(printed)
        assert json.dumps(named("ann")) in printed


def test_plain_text_is_unchanged() -> None:
    assert plain("etl-Ä-日本-🚀 [1]") == "etl-Ä-日本-🚀 [1]"
    assert plain("a\nb\x1b\ud800") == "a\\nb\\x1b\\ud800"
    assert plain_lines("a\nb\x1b") == "a\nb\\x1b"
