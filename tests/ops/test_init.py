"""`ehbalance init`."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from tests.ops.command import KEY, Command, connection_arguments
from tests.ops.groups import HUB, Group


def test_init_creates_the_table_and_then_checks_it(group: Group, emulator: Emulator, table: Path) -> None:
    name = f"localhost:{emulator.port}/hub/$default"
    assert group.done("init") == f"Lease table {group.table} of {name} created; the hub has 4 partitions.\n"
    created = group.state
    assert (str(created.group), created.leases, created.members) == (name, {}, {})
    assert "exists; the hub has 4 partitions." in group.done("init")
    assert group.state == created


def test_init_reads_the_connection_from_the_environment(
    ehbalance: Command, emulator: Emulator, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EHBALANCE_CONNECTION_STRING", emulator.connection_string())
    printed = ehbalance("init", table, "--event-hub-name", HUB, "--consumer-group", "other").out
    assert "/hub/other created" in printed


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ([], ("connectionString", "fullyQualifiedNamespace")),
        (["--connection-string", f"SharedAccessKey={KEY}"], ("EHB_SECRET_EXPOSED", "An argument")),
        (["--connection-string", "short"], ("EHB_SECRET_EXPOSED", "--connection-string")),
        (["--connection-string", "env:NOT_THERE"], ("EHB_SECRET_UNAVAILABLE", "connectionString='env:NOT_THERE'")),
        (["--connection-string", "file:/not/there"], ("EHB_SECRET_UNAVAILABLE", "connectionString='file:/not/there'")),
        (["--fully-qualified-namespace", "ns"], ("fullyQualifiedNamespace='ns'",)),
        (["--fully-qualified-namespace", "ns.servicebus.windows.net"], ("eventHubName",)),
        (["--network", "proxy=http://a:1"], ("EHB_OPTION_INVALID", "'proxy'", "transportType, httpProxy")),
        (["--network", "transportType"], ("EHB_OPTION_INVALID", "--network", "NAME=VALUE")),
        (["--network", f"httpProxy=http://me:{KEY}@host:80"], ("EHB_SECRET_EXPOSED", "An argument")),
    ],
)
def test_init_rejects_an_invalid_option(
    ehbalance: Command, table: Path, arguments: list[str], values: tuple[str, ...]
) -> None:
    error = ehbalance.fails(2, "init", table, *arguments)
    for value in values:
        assert value in error
    assert not table.exists()


def test_init_rejects_invalid_names(group: Group, ehbalance: Command, table: Path) -> None:
    assert "[EHB_OPTION_INVALID] transportType='udp'" in group.fails(2, "init", "--network", "transportType=udp")
    assert "consumerGroup='a b'" in group.fails(2, "init", "--consumer-group", "a b")
    assert "leaseTable=" in ehbalance.fails(2, "init", f"{table}[1]", *group.connection)
    assert "EntityPath=" in group.fails(2, "init", "--event-hub-name", "other")
    for command in ("init", "status"):
        assert "NAME=VALUE" in group.fails(2, command, "--storage-option", KEY), "which is not repeated"
    assert list(table.parent.iterdir()) == []


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
def test_secret_in_the_arguments_is_rejected_and_hidden(group: Group, table: Path, arguments: list[str]) -> None:
    for command in ("init", "status", "history", "maintain"):
        group.fails(2, command, *arguments)
    assert not table.exists()


@pytest.mark.parametrize("prefix", ["", "storageOptions.", "storageSecrets."])
def test_errors_about_storage_options_use_the_commands_names(ehbalance: Command, prefix: str) -> None:
    location = "abfss://c@account.dfs.core.windows.net/leases"
    message = ehbalance.fails(2, "status", location, "--storage-option", f"{prefix}sas_token=sv=2022")
    assert "[EHB_SECRET_EXPOSED] --storage-option 'sas_token'" in message
    message = ehbalance.fails(2, "status", location, "--storage-option", f"{prefix}sas_token=env:MISSING")
    assert "[EHB_SECRET_UNAVAILABLE] --storage-option sas_token=" in message


def test_secret_storage_option_must_be_a_reference(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    message = group.fails(2, "init", "--storage-option", "account_key=env:LEASES_KEY")
    assert "[EHB_SECRET_UNAVAILABLE] --storage-option account_key='env:LEASES_KEY'" in message
    monkeypatch.setenv("LEASES_KEY", KEY)
    for command in ("init", "status"):
        assert group(command, "--storage-option", "account_key=env:LEASES_KEY").code == 0


def test_init_without_the_hub_creates_nothing(
    ehbalance: Command, emulator: Emulator, table: Path, secrets: Path
) -> None:
    def fails(string: str) -> str:
        return ehbalance.fails(1, "init", table, *connection_arguments(string, secrets))

    assert "Event hub 'nohub'" in fails(emulator.connection_string("nohub"))
    assert "EHB_CREDENTIALS_REFUSED" in fails(emulator.connection_string(HUB, key=KEY + "not"))
    emulator.refuse_connections()
    assert "did not answer" in fails(emulator.connection_string(HUB))
    assert not table.exists()
