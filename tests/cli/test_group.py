"""`ehbalance init` and `ehbalance status`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.leases.model import Handover, Lease, Load, Member, MemberLoad, MemberState, Pin
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.values.position import Position
from tests.cli.command import KEY, Command, kept

HUB = "hub"


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    """An emulator that checks keys."""
    with Emulator({HUB: 4}, consumer_groups=["other"], sas_keys={"reader": KEY}) as running:
        yield running


@pytest.fixture
def connection(emulator: Emulator, secrets: Path) -> Sequence[str]:
    return kept(emulator.connection_string(HUB), secrets)


@pytest.fixture
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder without a table."""
    return tmp_path_factory.mktemp("secrets")


# --- init ------------------------------------------------------------------------------------------------------


def test_init_makes_the_table_and_then_checks_it(
    ehbalance: Command, emulator: Emulator, table: Path, connection: Sequence[str]
) -> None:
    group = f"localhost:{emulator.port}/hub/$default"
    first = ehbalance("init", table, *connection)
    assert (first.code, first.err) == (0, "")
    assert first.out == f"The lease table {table} of {group} was made; the hub has 4 partitions.\n"
    with DeltaStore(str(table)) as store:
        made = store.read()
        assert (str(made.group), made.leases, made.members) == (group, {}, {})
    second = ehbalance("init", table, *connection)
    assert second.code == 0
    assert "is there; the hub has 4 partitions." in second.out
    with DeltaStore(str(table)) as store:
        assert store.read() == made


def test_init_reads_the_connection_from_the_environment(
    ehbalance: Command, emulator: Emulator, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EHBALANCE_CONNECTION_STRING", emulator.connection_string())
    outcome = ehbalance("init", table, "--event-hub-name", HUB, "--consumer-group", "other")
    assert outcome.code == 0
    assert "/hub/other was made" in outcome.out


def test_init_of_another_groups_table_is_refused(
    ehbalance: Command, emulator: Emulator, table: Path, connection: Sequence[str]
) -> None:
    ehbalance("init", table, *connection)
    message = ehbalance.fails(1, "init", table, *connection, "--consumer-group", "other")
    assert "belongs to" in message
    assert "$default, not to" in message


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "neither connectionString nor fullyQualifiedNamespace"),
        (["--connection-string", f"SharedAccessKey={KEY}"], "an argument looks like a secret"),
        (
            ["--connection-string", "short"],
            "--connection-string is wrong: anybody can see command",
        ),
        (["--connection-string", "env:NOT_THERE"], "option connectionString='env:NOT_THERE' is wrong: the environment"),
        (["--connection-string", "file:/not/there"], "file:/not/there' is wrong: the file cannot be read"),
        (["--fully-qualified-namespace", "ns"], "fullyQualifiedNamespace='ns'"),
        (["--fully-qualified-namespace", "ns.servicebus.windows.net"], "eventHubName is not set"),
    ],
)
def test_init_with_a_wrong_option(ehbalance: Command, table: Path, arguments: list[str], named: str) -> None:
    assert named in ehbalance.fails(2, "init", table, *arguments)
    assert not table.exists()


def test_init_with_wrong_names(ehbalance: Command, table: Path, connection: Sequence[str]) -> None:
    assert "consumerGroup='a b'" in ehbalance.fails(2, "init", table, *connection, "--consumer-group", "a b")
    assert "leaseTable=" in ehbalance.fails(2, "init", f"{table}[1]", *connection)
    assert "contradicts EntityPath" in ehbalance.fails(2, "init", table, *connection, "--event-hub-name", "other")
    assert "NAME=VALUE" in ehbalance.fails(2, "init", table, *connection, "--storage-option", "no-value")
    assert list(table.parent.iterdir()) == []


def test_a_storage_option_without_a_name_is_not_repeated(
    ehbalance: Command, table: Path, connection: Sequence[str]
) -> None:
    ehbalance.fails(2, "init", table, *connection, "--storage-option", KEY)
    ehbalance.fails(2, "status", table, "--storage-option", KEY)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--storage-option", f"account_key={KEY}"],
        ["--storage-option", f"region={KEY}Q0123456789=="],
        ["--storage-option", f"{KEY}0123456789={KEY}0123456789"],
        [f"--{KEY}0123456789=="],
        [f"{KEY}0123456789=="],
        ["--consumer-group", f"sig={KEY}"],
    ],
)
def test_a_secret_in_the_arguments_is_refused_and_not_repeated(
    ehbalance: Command, table: Path, connection: Sequence[str], arguments: list[str]
) -> None:
    for command in (["init", table, *connection], ["status", table], ["history", table], ["maintain", table]):
        ehbalance.fails(2, *command, *arguments)
    assert not table.exists()


def test_a_secret_storage_option_is_a_reference(
    ehbalance: Command, table: Path, connection: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    message = ehbalance.fails(2, "init", table, *connection, "--storage-option", "account_key=env:LEASES_KEY")
    assert "option storageOptions.account_key='env:LEASES_KEY' is wrong: the environment" in message
    monkeypatch.setenv("LEASES_KEY", KEY)
    for command in (["init", table, *connection], ["status", table]):
        assert ehbalance(*command, "--storage-option", "account_key=env:LEASES_KEY").code == 0


def test_init_without_a_hub_makes_nothing(ehbalance: Command, emulator: Emulator, table: Path, secrets: Path) -> None:
    wrong = emulator.connection_string("nohub")
    assert "event hub 'nohub'" in ehbalance.fails(1, "init", table, *kept(wrong, secrets))
    emulator.refuse_connections()
    right = emulator.connection_string(HUB)
    assert "did not answer" in ehbalance.fails(1, "init", table, *kept(right, secrets))
    assert not table.exists()


def test_init_with_a_wrong_key_makes_nothing(
    ehbalance: Command, emulator: Emulator, table: Path, secrets: Path
) -> None:
    wrong = emulator.connection_string(HUB, key=KEY + "not")
    assert "refused the credentials" in ehbalance.fails(1, "init", table, *kept(wrong, secrets))
    assert not table.exists()


def test_init_at_an_unwritable_location(ehbalance: Command, table: Path, connection: Sequence[str]) -> None:
    table.write_text("a file")
    assert str(table) in ehbalance.fails(1, "init", table, *connection)
    assert table.read_text() == "a file"


# --- status ----------------------------------------------------------------------------------------------------


@pytest.fixture
def used(ehbalance: Command, table: Path, connection: Sequence[str]) -> Path:
    """The table of a running group."""
    ehbalance("init", table, *connection)
    with DeltaStore(str(table)) as store:
        base = store.read()
        ms = 1_770_000_000_000
        leases = {
            "0": Lease("0", "alice", 3, 17, ms, ms, Position(4711, "offset"), Handover("bob", 30_000)),
            "1": Lease("1", "bob", 1, 5, ms, ms, Position(-1)),
            "2": Lease("2", None, 8, 2, ms, ms, Position(9)),
            "10": Lease("10"),
        }
        members = {
            "bob": Member("bob", "x", 2, renewed_at_ms=ms, started_at_ms=ms, host="host-b"),
            "alice": Member("alice", "y", 1, renewed_at_ms=ms, started_at_ms=ms, host="host-a"),
        }
        store.write(base, replace(base, leases=leases, members=members))
    return table


def test_status_for_programs(ehbalance: Command, emulator: Emulator, used: Path) -> None:
    outcome = ehbalance("status", used, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    state = json.loads(outcome.out)
    assert (state["namespace"], state["eventHub"], state["consumerGroup"]) == (
        f"localhost:{emulator.port}",
        "hub",
        "$default",
    )
    assert state["leader"] == "alice"
    assert [lease["partition"] for lease in state["partitions"]] == ["0", "1", "2", "10"]
    zero, one, two, ten = state["partitions"]
    assert (zero["owner"], zero["epoch"], zero["sequenceNumber"], zero["nextOwner"]) == ("alice", 3, 4711, "bob")
    assert (one["owner"], one["sequenceNumber"], one["nextOwner"]) == ("bob", -1, None)
    assert (two["owner"], two["epoch"], two["sequenceNumber"]) == (None, 8, 9)
    assert (ten["owner"], ten["sequenceNumber"]) == (None, None)
    assert datetime.fromisoformat(zero["renewedAt"]).timestamp() == 1_770_000_000
    assert [(each["member"], each["host"], each["partitions"]) for each in state["members"]] == [
        ("alice", "host-a", ["0"]),
        ("bob", "host-b", ["1"]),
    ]
    assert {each["state"] for each in state["members"]} == {"active"}


def test_status_for_people(ehbalance: Command, used: Path) -> None:
    outcome = ehbalance("status", used)
    assert (outcome.code, outcome.err) == (0, "")
    assert "hub/$default, 2 members" in outcome.out
    rows = {line.split("│")[1].strip(): line for line in outcome.out.splitlines() if line.count("│") > 3}
    assert {"0", "1", "2", "10"} <= rows.keys()
    assert "alice" in rows["0"]
    assert "4711" in rows["0"]
    assert "bob" in rows["0"]
    assert "nobody" in rows["2"]


def test_status_shows_loads_strategies_and_orders(ehbalance: Command, used: Path) -> None:
    with DeltaStore(str(used)) as store:
        base = store.read()
        lease = replace(base.leases["0"], pin=Pin("bob", "operator:jo", "nearer"), load=Load(250.5, 1200.0))
        moving = replace(base.leases["1"], pin=Pin("alice", "operator:jo", transfer=True))
        load = MemberLoad(1234.5, 6789.0, 2.5, 0.42)
        bob = replace(base.members["bob"], load=load, strategy="greedy", max_owned=3, state=MemberState.LEAVING)
        leases, members = {**base.leases, "0": lease, "1": moving}, {**base.members, "bob": bob}
        store.write(base, replace(base, leases=leases, members=members))
    state = json.loads(ehbalance("status", used, "--json").out)
    zero, one, two, _ = state["partitions"]
    assert zero["pin"] == {"to": "bob", "by": "operator:jo", "why": "nearer", "transfer": False}
    assert zero["load"] == {"rate": 250.5, "backlog": 1200.0}
    assert one["pin"]["transfer"] is True
    assert (two["pin"], two["load"]) == (None, None)
    first, second = state["members"]
    assert (first["load"], first["strategy"], first["pinned"], first["maxPartitionsOwned"]) == (None, "", ["1"], None)
    assert second["load"] == {"rate": 1234.5, "backlog": 6789.0, "batchSeconds": 2.5, "cpu": 0.42}
    assert (second["strategy"], second["state"], second["pinned"]) == ("greedy", "leaving", ["0"])
    assert second["maxPartitionsOwned"] == 3

    lines = ehbalance("status", used).out.splitlines()
    (shown,) = (line for line in lines if "host-b" in line)
    for cell in ("bob", "leaving", "greedy", "1 of at most 3", "1,234", "6,789", "2.5 s", "42%"):
        assert cell in shown
    rows = {line.split("│")[1].strip(): line for line in lines if line.count("│") > 3}
    assert rows["0"].count("bob") == 2, "as the next owner, and as the one that it is pinned to"
    assert "alice (transfer)" in rows["1"]


def test_status_of_a_new_table(ehbalance: Command, table: Path, connection: Sequence[str]) -> None:
    ehbalance("init", table, *connection)
    assert "0 members" in ehbalance("status", table).out
    state = json.loads(ehbalance("status", table, "--json").out)
    assert (state["partitions"], state["members"], state["leader"]) == ([], [], None)


@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_status_without_a_table(ehbalance: Command, table: Path, json_too: list[str]) -> None:
    message = ehbalance.fails(1, "status", table, *json_too)
    assert f"there is no lease table at {table}" in message
    assert "ehbalance init" in message
    assert not table.exists()


def test_status_of_a_table_that_is_no_lease_table(ehbalance: Command, table: Path) -> None:
    table.mkdir()
    (table / "file").write_text("x")
    assert str(table) in ehbalance.fails(1, "status", table)


@pytest.mark.parametrize("location", ["a[b", "a'b", "a*b", ""])
def test_status_of_a_location_that_delta_cannot_open(ehbalance: Command, location: str) -> None:
    assert f"option leaseTable={location!r} is wrong" in ehbalance.fails(2, "status", location)


def test_watch_and_json_together_are_refused(ehbalance: Command, used: Path) -> None:
    message = ehbalance.fails(2, "status", used, "--watch", "--json")
    assert "--watch and --json" in message


def test_status_with_a_wrong_storage_option(ehbalance: Command, used: Path) -> None:
    assert "NAME=VALUE" in ehbalance.fails(2, "status", used, "--storage-option", "nothing")


@pytest.mark.parametrize("owner", ["[red]x[/red]", "etl:key:1"])
def test_an_owner_id_is_shown_without_markup(ehbalance: Command, used: Path, owner: str) -> None:
    with DeltaStore(str(used)) as store:
        base = store.read()
        lease = replace(base.leases["0"], owner=owner)
        store.write(base, replace(base, leases={**base.leases, "0": lease}))
    assert owner in ehbalance("status", used).out


# --- the command itself ----------------------------------------------------------------------------------------


def test_without_arguments_the_commands_are_listed(ehbalance: Command) -> None:
    printed = ehbalance()
    for command in ("init", "status", "emulator"):
        assert command in printed.out + printed.err


@pytest.mark.parametrize("arguments", [["nonsense"], ["status"], ["status", "x", "--nonsense"], ["init"]])
def test_a_wrong_command_line_is_refused(ehbalance: Command, arguments: list[str]) -> None:
    assert ehbalance(*arguments).code == 2


def test_help_does_not_show_the_environment(
    ehbalance: Command, monkeypatch: pytest.MonkeyPatch, connection: Sequence[str]
) -> None:
    monkeypatch.setenv("EHBALANCE_CONNECTION_STRING", f"SharedAccessKey={KEY}")
    assert "connection-string" in ehbalance("init", "--help").out


def test_the_installed_command_prints_json_and_exit_codes(used: Path, tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("ehbalance")
    good = subprocess.run([command, "status", used, "--json"], capture_output=True, text=True, timeout=60)
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)["eventHub"] == "hub"
    env = os.environ | {"EHBALANCE_CONNECTION_STRING": f"SharedAccessKey={KEY}"}
    wrong = subprocess.run([command, "init", tmp_path / "x"], capture_output=True, text=True, timeout=60, env=env)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("Error: option connectionString is wrong")
    assert wrong.stderr.count("\n") == 1
    assert KEY not in wrong.stderr


def test_watching_ends_with_ctrl_c(used: Path) -> None:
    import signal
    import time

    command = Path(sys.executable).with_name("ehbalance")
    process = subprocess.Popen(
        [command, "status", used, "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "200", "FORCE_COLOR": "1"},
    )
    assert process.stdout is not None
    deadline = time.monotonic() + 30
    seen = ""
    while "alice" not in seen and time.monotonic() < deadline:
        seen += process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert "alice" in seen
    assert "Traceback" not in err
    assert process.returncode in (0, 1, 130)


@pytest.mark.parametrize("name", ["status", "history"])
def test_the_installed_command_always_exits_cleanly(used: Path, name: str) -> None:
    with DeltaStore(str(used)) as store:
        store.record([OwnershipChange(0, "0", "Claim", None, "ann", 1, None, "ann")])
    command = Path(sys.executable).with_name("ehbalance")
    runs = [
        subprocess.Popen([command, name, used, "--json"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(12)
    ]
    assert [(run.communicate(timeout=240)[1], run.returncode) for run in runs] == [(b"", 0)] * 12
