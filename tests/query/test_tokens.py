"""Tokens that expire while a receiver waits for its sink or for the next task."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from chaos.tokens import IdentityEndpoint, ShortLived
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.eventhub import credentials
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.credentials import Identity
from spark_ehbalance.eventhub.metadata import HubMetadata, PartitionState
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.eventhub.receiver import PartitionAddress
from spark_ehbalance.eventhub.resolve import resolve
from spark_ehbalance.eventhub.rows import sequence_numbers
from spark_ehbalance.eventhub.watcher import HubWatcher
from spark_ehbalance.group.starting_positions import LATEST
from spark_ehbalance.query.range_reader import BatchFormat, read_range
from spark_ehbalance.query.receivers import RECEIVERS, Receivers
from tests.query.support import HUB, CountedReceivers, hub_options
from tests.raising import raises
from tests.waiting import wait_until

KEYS = {"reader": "theRightKey"}

#: The lifetime of a token in seconds.
LIFE = 2.0


@pytest.fixture(autouse=True)
def _cleanup() -> Iterator[None]:
    yield
    RECEIVERS.close()
    credentials.clear_cache()


@pytest.fixture
def guarded() -> Iterator[Emulator]:
    """An emulator that checks signatures, with 1,000 events."""
    with Emulator({HUB: 1}, sas_keys=KEYS) as made:
        made.append(HUB, 0, [b"x"] * 1000)
        yield made


@pytest.fixture
def open_to_all(emulator: Emulator) -> Emulator:
    """An emulator that accepts any token until it expires, with 1,000 events."""
    emulator.add_hub(HUB, 1)
    emulator.append(HUB, 0, [b"x"] * 1000)
    return emulator


@pytest.fixture(params=["signature", "managed identity"])
def server_and_connection(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Emulator, ShortLived]]:
    """An emulator and a connection to it whose tokens expire after `LIFE` seconds."""
    if request.param == "signature":
        server = request.getfixturevalue("guarded")
        yield server, ShortLived(f"localhost:{server.port}", HUB, None, server.connection_string(HUB), life=LIFE)
        return
    server = request.getfixturevalue("open_to_all")
    with IdentityEndpoint(LIFE) as endpoint:
        yield server, identity(server, endpoint, monkeypatch)


def identity(server: Emulator, endpoint: IdentityEndpoint, monkeypatch: pytest.MonkeyPatch) -> ShortLived:
    """A connection that uses azure-identity's credential for managed identities."""
    for name, value in endpoint.environment.items():
        monkeypatch.setenv(name, value)
    return ShortLived(f"localhost:{server.port}", HUB, Identity("managedIdentity"))


def read(
    server: Emulator,
    connection: Connection,
    start: int,
    end: int,
    level: int | None = None,
    then: Callable[[], object] = lambda: None,
    worker: Receivers = RECEIVERS,
) -> list[int]:
    """The sequence numbers read; `then` is called after the first batch."""
    got: list[int] = []
    options = replace(hub_options(server, prefetch=100), connection=connection)
    for batch in read_range(
        options, OffsetRange("0", 0, start, end), None, level, receivers=worker, batches=BatchFormat(max_rows=100)
    ):
        if not got:
            then()
        got += sequence_numbers(batch).to_pylist()
    return got


def wait_until_detached(server: Emulator) -> None:
    wait_until(lambda: server.readers(HUB, 0) == [], "the token is over, and the hub has detached the link")


def test_reading_and_metadata_requests_continue_when_tokens_expire(
    server_and_connection: tuple[Emulator, ShortLived], caplog: pytest.LogCaptureFixture
) -> None:
    server, connection = server_and_connection
    watcher = HubWatcher(connection, "$Default", LATEST, timeout=10.0)
    with ExitStack() as stack:
        stack.callback(watcher.stop)
        watcher.start()
        metadata = stack.enter_context(HubMetadata(connection, "$Default"))
        assert metadata.partition_ids() == ("0",)
        assert read(server, connection, 0, 1000, 3, then=lambda: wait_until_detached(server)) == list(range(1000))
        assert metadata.partition_ids() == ("0",)
        server.append(HUB, 0, [b"x"])
        watcher.refresh()
        assert watcher.states()["0"].end == 1001
    # The watcher of an earlier test can still warn that its hub has stopped.
    assert not [x for x in caplog.messages if "Event hub unavailable" in x and f":{server.port}" in x]


def test_expired_cached_token_is_not_reused(open_to_all: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint claims that the token is valid for an hour, so azure-identity would return it again."""
    with IdentityEndpoint(LIFE, stated=3600.0) as endpoint:
        connection = identity(open_to_all, endpoint, monkeypatch)
        got = read(open_to_all, connection, 0, 1000, 3, then=lambda: wait_until_detached(open_to_all))
        assert got == list(range(1000))
        assert endpoint.issued == 2
        wait_until_detached(open_to_all)
        now = datetime.now(timezone.utc)
        source, state = PartitionAddress(connection, "$Default", "0"), PartitionState(0, 1000, None, now)
        assert resolve(now - timedelta(days=1), source, state, timeout=20).next == 0, "a time"


def test_rejected_token_renewal_is_an_error(guarded: Emulator) -> None:
    worker = CountedReceivers()
    wrong = hub_options(guarded, connectionString=guarded.connection_string(HUB, key="theWrongKey")).connection
    with raises(HubUnavailableError, "EHB_CREDENTIALS_REFUSED", hub=re.compile("^Partition 0 ")) as caught:
        read(guarded, wrong, 0, 1000, worker=worker)
    assert len(worker.opened) == 2
    assert "theWrongKey" not in str(caught.value)
