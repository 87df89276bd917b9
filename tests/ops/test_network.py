"""Commands reach the hub over other routes with `--network`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.group.model import Lease
from spark_ehbalance.group.position import Position
from tests.ops.command import Command, connection_arguments
from tests.ops.groups import change
from tests.proxy import HttpProxy

HUB, PASSWORD = "hub", "onlyForTheProxy"


@pytest.fixture
def secure() -> Iterator[Emulator]:
    with Emulator({HUB: 2}, tls=True, tls_names=("hub.test",), websocket_port=0) as running:
        running.append(HUB, 0, [b"x"] * 5)
        yield running


def test_init_and_seek_by_websocket_through_a_proxy(
    ehbalance: Command, secure: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, hub = tmp_path / "leases", connection_arguments(secure.connection_string(HUB), tmp_path)
    with HttpProxy({"hub.test:443": secure.websocket_port}, user="me", password=PASSWORD) as proxy:
        monkeypatch.setenv("HUB_PROXY", f"http://me:{PASSWORD}@localhost:{proxy.port}")
        options = ("httpProxy=env:HUB_PROXY", "customendpointaddress=hub.test", f"caFile={secure.ca_file}")
        way = [argument for option in options for argument in ("--network", option)]
        assert "the hub has 2 partitions" in ehbalance("init", table, *hub, *way).out
        change(table, leases={"0": Lease("0", checkpoint=Position(3))})  # in the state that a query leaves
        # resolving a time needs a receiver
        done = ehbalance("seek", table, "--all", "--to", "2020-01-01T00:00:00Z", *hub, *way)
        assert (done.code, done.err) == (0, "")
        assert "Partition 0 continues at sequence number 0." in done.out
        assert proxy.connected >= 3
        assert not proxy.refused
        monkeypatch.setenv("HUB_PROXY", f"http://me:{PASSWORD[:-1]}@localhost:{proxy.port}")
        error = ehbalance.fails(1, "init", table, *hub, *way)
        assert f"the proxy localhost:{proxy.port} refuses the connection to " in error
        assert PASSWORD[:-1] not in error
