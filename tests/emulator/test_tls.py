"""TLS with a new certificate; `tests/eventhub/test_wire_link.py` tests the real client."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.certificates import issue_certificate
from tests.emulator.clients import DEADLINE
from tests.emulator.test_command import running


@pytest.fixture
def secure() -> Iterator[Emulator]:
    with Emulator({"hub": 1}, tls=True, tls_names=("hub.test",)) as running:
        yield running


@contextlib.contextmanager
def connected(port: int, context: ssl.SSLContext, name: str = "localhost") -> Iterator[ssl.SSLSocket]:
    plain = socket.create_connection(("127.0.0.1", port), 10)
    with plain, context.wrap_socket(plain, server_hostname=name) as wrapped:
        yield wrapped


def strict(ca_file: Path) -> ssl.SSLContext:
    """The default verification of newer versions of Python."""
    context = ssl.create_default_context(cafile=str(ca_file))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def test_certificate_is_valid_for_its_authority_and_names_only(secure: Emulator, tmp_path: Path) -> None:
    for name in ("localhost", "127.0.0.1", "hub.test"):
        with connected(secure.port, strict(secure.ca_file), name) as wrapped:
            assert wrapped.version() in ("TLSv1.2", "TLSv1.3")
    with (
        pytest.raises(ssl.SSLCertVerificationError),
        connected(secure.port, strict(issue_certificate(tmp_path).ca_file)),
    ):
        pass
    with pytest.raises(ssl.SSLCertVerificationError), connected(secure.port, strict(secure.ca_file), "other.test"):
        pass


def test_no_file_contains_the_private_key_and_none_remains() -> None:
    with Emulator(tls=True) as running:
        folder = running.ca_file.parent
        assert [file.name for file in folder.iterdir()] == ["ca.pem"]
        assert "PRIVATE" not in running.ca_file.read_text()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()
    with pytest.raises(RuntimeError):
        _ = running.ca_file


def test_command_prints_the_ca_file_and_the_websocket_port() -> None:
    with running("--tls", "--websocket-port", "0") as (process, connection, printed):
        match = re.fullmatch(r" \(websocket port (\d+), CA file (.+)\)", printed)
        assert match is not None
        ca_file = Path(match[2])
        for port in (re.search(r":(\d+);", connection)[1], match[1]):
            with connected(int(port), strict(ca_file)):
                pass
        process.terminate()
        assert process.wait(DEADLINE) == 0
        assert not ca_file.parent.exists()
