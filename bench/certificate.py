"""A self-signed certificate for `localhost`."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path


def make(folder: Path) -> Path:
    """Make a PEM file in `folder` with a private key and its certificate."""
    made, key, certificate = (folder / name for name in ("localhost.pem", "key.pem", "certificate.pem"))
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*command, *names, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    made.write_bytes(key.read_bytes() + certificate.read_bytes())
    return made


def trusting(certificate: Path) -> ssl.SSLContext:
    """The TLS context of a client that trusts it."""
    return ssl.create_default_context(cafile=str(certificate))
