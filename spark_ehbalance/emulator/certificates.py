"""A temporary certificate authority, and a certificate that it has signed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")  # how a client on this machine may call the server
CA_FILE = "ca.pem"  # in the folder of the files
_LIFE = timedelta(days=30)  # longer than any run, and short, because nobody should get used to it
_BEFORE = timedelta(hours=1)  # a client's clock may be slow


@dataclass(frozen=True)
class Certificate:
    """Two PEM files: the authority's certificate, for clients, and for the server its private key and its chain."""

    ca_file: Path
    server_file: Path


def issue_certificate(folder: Path, names: Iterable[str] = LOCAL_NAMES) -> Certificate:
    """Make the files in `folder` for a server with these host names and addresses. Raises ImportError without the
    package trustme, OSError."""
    import trustme  # not needed without TLS

    now, organization = datetime.now(timezone.utc), "Event Hubs emulator: authority of one run"
    authority = trustme.CA(organization_name=organization)
    server = authority.issue_cert(*names, not_before=now - _BEFORE, not_after=now + _LIFE)
    made = Certificate(folder / CA_FILE, folder / "server.pem")
    made.ca_file.write_bytes(authority.cert_pem.bytes())
    made.server_file.touch(mode=0o600)
    made.server_file.write_bytes(server.private_key_and_cert_chain_pem.bytes())
    return made
