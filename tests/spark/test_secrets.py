"""Spark and this package neither display nor store keys. `tests/settings/test_secrets.py` covers all options."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from spark_ehbalance.emulator import Emulator
from tests.metrics.prometheus import free_port

HUB_KEY = base64.b64encode(b"the-key-of-an-event-hub-01234567").decode()
ACCOUNT_KEY = base64.b64encode(bytes(range(100, 164))).decode()
ROOT = Path(__file__).parents[2]

# It uses its own Spark and has no time limits that a busy machine could exceed.
pytestmark = [pytest.mark.heavy, pytest.mark.spark, pytest.mark.xdist_group("own spark")]


def forms(key: str) -> list[bytes]:
    """All spellings of a key: unchanged, without padding, in a URL, in base64, in lower case."""
    bare = key.rstrip("=")
    found = [bare, quote(bare, safe=""), bare.lower()]
    # Base64 inside a longer text: three alignments, without the characters that depend on neighbours.
    found += [base64.b64encode(b"\0" * place + bare.encode()).decode()[4:-4] for place in range(3)]
    return [place.encode() for place in dict.fromkeys(found)]


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def hits(found: dict[str, bytes]) -> list[str]:
    return [
        name
        for name, content in found.items()
        for key in (HUB_KEY, ACCOUNT_KEY)
        for form in forms(key)
        if form in content
    ]


def environment(hub: Emulator, secrets: Path, **more: str) -> dict[str, str]:
    """Environment variables and a file with the secrets, as the person who starts a driver provides them."""
    secrets.mkdir()
    (secrets / "account-key").write_text(ACCOUNT_KEY + "\n")
    inherited = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "SPARK_CONF_DIR")}
    return {
        **inherited,
        **more,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "EHBALANCE_LOG_LEVEL": "DEBUG",
        "EHBALANCE_CONNECTION_STRING": hub.connection_string("hub"),
        "LEASES_ACCOUNT_KEY": ACCOUNT_KEY,
    }


@pytest.fixture
def hub() -> Iterator[Emulator]:
    """A hub that checks the key."""
    with Emulator({"hub": 2}, sas_keys={"reader": HUB_KEY}) as running:
        for partition in (0, 1):
            running.append("hub", partition, [b"x"] * 10)
        yield running


def test_keys_are_neither_displayed_nor_stored(hub: Emulator, tmp_path: Path) -> None:
    folder = tmp_path / "shown"
    folder.mkdir()
    shared = {"leaseTable": str(folder / "leases"), "startingPosition": "earliest", "metricsPort": str(free_port())}
    literal = {"connectionString": hub.connection_string("hub"), "storageSecrets.account_key": ACCOUNT_KEY}
    by_reference = {
        "connectionString": "env:EHBALANCE_CONNECTION_STRING",
        "storageSecrets.account_key": f"file:{tmp_path / 'secrets' / 'account-key'}",
        "storageOptions.azure_storage_sas_token": "env:LEASES_ACCOUNT_KEY",
    }
    request = {
        "folder": str(folder),
        "ways": {"literal": shared | literal, "reference": shared | by_reference},
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.shown_by_spark"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(hub, tmp_path / "secrets"),
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    found = everything(folder) | {"output": (done.stdout + done.stderr).encode()}
    assert hits(found) == []

    # The searched texts do contain the options, with hidden values.
    events = b"".join(content for name, content in found.items() if name.startswith("events/"))
    for where in (found["shown/literal-stream-explain"], found["shown/literal-mistakes"], events):
        assert b"storageSecrets.account_key=*********(redacted)" in where
        assert b"connectionString=*********(redacted)" in where
    for where in (found["shown/reference-stream-explain"], events):
        assert b"connectionString=env:EHBALANCE_CONNECTION_STRING" in where
    assert b"pyspark.daemon" in found["shown/command-lines"]
    assert b"on purpose" in found["shown/reference-failure"]
    assert b"UnsendableEventError" in found["shown/literal-write"]
    assert b'"endOffset"' in found["shown/literal-progress"]
    assert found["shown/literal-batch-rows"] == b"20\n"
    assert b"owned_partitions" in found["shown/literal-metrics"]
    assert b"StreamingQuery" in found["shown/literal-query"]
    assert b"DEBUG" in found["spark.log"]
    assert b"balance: " in found["output"]
