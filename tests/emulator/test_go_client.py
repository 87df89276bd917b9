"""Microsoft's Go SDK, unmodified, against the emulator: properties, producer, partition client, processor."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator

SOURCE = Path(__file__).with_name("go_client")
INSTALLED = "/usr/local/go/bin"  # where Go's installation guide puts it
MINUTES = 8  # seldom more than one: to fetch the SDK and compile it for the first time


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program in `go_client`."""
    go = shutil.which("go") or shutil.which("go", path=INSTALLED)
    if go is None:
        pytest.skip(f"the Go SDK's client is not run: there is no `go` on the PATH or in {INSTALLED}")
    fetched = subprocess.run([go, "mod", "download"], cwd=SOURCE, capture_output=True, text=True)
    if fetched.returncode:
        pytest.skip(f"the Go SDK's client is not run: the SDK cannot be fetched: {fetched.stderr.strip()}")
    built = tmp_path_factory.mktemp("go") / "client"
    done = subprocess.run([go, "build", "-o", built, "."], cwd=SOURCE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return built


@pytest.mark.timeout(60 * MINUTES)
@pytest.mark.parametrize("keys", [None, {"reader": "key"}], ids=["no keys", "checked keys"])
def test_the_go_sdk(program: Path, keys: dict[str, str] | None) -> None:
    with Emulator({"hub": 2}, sas_keys=keys) as emulator:
        done = subprocess.run([program, emulator.connection_string("hub")], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
