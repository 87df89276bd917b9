"""Creates a temporary certificate authority, and a server certificate that it has signed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")  # the server's names on this machine
CA_FILE = "ca.pem"
_VALIDITY = timedelta(days=30)  # longer than any run, too short for other uses
_CLOCK_TOLERANCE = timedelta(hours=1)  # a client's clock may be slow


@dataclass(frozen=True)
class Certificate:
    """Two PEM files. `ca_file` contains the authority's certificate, for clients; `server_file` contains the server's
    private key and certificate chain."""

    ca_file: Path
    server_file: Path


def issue_certificate(folder: Path, names: Iterable[str] = LOCAL_NAMES) -> Certificate:
    """Issue a certificate for a server with these host names and addresses, and write its files to `folder`. Raises
    OSError, and ImportError if the package trustme is missing."""
    import trustme  # optional: only TLS needs it

    now, organization = datetime.now(timezone.utc), "Event Hubs emulator: authority of one run"
    authority = trustme.CA(organization_name=organization)
    server = authority.issue_cert(*names, not_before=now - _CLOCK_TOLERANCE, not_after=now + _VALIDITY)
    certificate = Certificate(folder / CA_FILE, folder / "server.pem")
    certificate.ca_file.write_bytes(authority.cert_pem.bytes())
    certificate.server_file.touch(mode=0o600)
    certificate.server_file.write_bytes(server.private_key_and_cert_chain_pem.bytes())
    return certificate
