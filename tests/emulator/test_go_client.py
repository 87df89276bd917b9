"""Microsoft's Go SDK, unmodified, against the emulator: properties, producer, partition client, processor."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_ehbalance.emulator import EventHub
from spark_ehbalance.emulator.partition_keys import partition_for_key

SOURCE = Path(__file__).with_name("go_client")
INSTALLED = "/usr/local/go/bin"  # by Go's installation guide
MINUTES = 8  # usually one: fetching and compiling the SDK for the first time


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program in `go_client`."""
    go = shutil.which("go") or shutil.which("go", path=INSTALLED)
    if go is None:
        pytest.skip(f"no `go` on the PATH or in {INSTALLED}")
    fetched = subprocess.run([go, "mod", "download"], cwd=SOURCE, capture_output=True, text=True)
    if fetched.returncode:
        pytest.skip(f"the Go SDK cannot be fetched: {fetched.stderr.strip()}")
    built = tmp_path_factory.mktemp("go") / "client"
    result = subprocess.run([go, "build", "-o", built, "."], cwd=SOURCE, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return built


@pytest.mark.timeout(60 * MINUTES)
@pytest.mark.parametrize("event_hub_settings", [{}, {"sas_keys": {"reader": "key"}}], ids=["no keys", "checked keys"])
def test_go_sdk(program: Path, make_event_hub: Callable[..., EventHub]) -> None:
    hub = make_event_hub("hub", 2)
    result = subprocess.run([program, hub.connection_string], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    with_key = [event for event in hub.events() if event.partition_key == "key"]
    assert [event.body for event in with_key] == [b"event %d" % number for number in range(10)]
    assert {event.partition for event in with_key} == {str(partition_for_key("key", 2))}
    assert with_key[3].properties == {"number": 3, "text": "ä", "yes": True, "bytes": b"\0\xff"}
    assert (with_key[3].message_id, with_key[3].content_type) == ("id-1", "text/plain")
