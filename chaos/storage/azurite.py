"""Azure Storage on this machine: Azurite, an emulator that runs on Node. `make setup` installs it if it finds Node."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from azure.storage.blob import BlobServiceClient, ContainerSasPermissions, generate_container_sas

#: The account that every Azurite has, and its published key.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_MAIN = Path(sys.prefix, "azurite", "node_modules", "azurite", "dist", "src", "blob", "main.js")

#: A module that ends its process when standard input ends, which also happens when the parent process is killed.
_END_WITH_PARENT = 'data:text/javascript,process.stdin.resume().on("end",()=>process.exit())'


def missing_requirement() -> str | None:
    """A message about what is missing to start Azurite; None if nothing is missing."""
    if _MAIN.exists() and shutil.which("node"):
        return None
    return "Azurite is missing: install Node 20 or newer with npm, then run `make setup`"


@contextlib.contextmanager
def azurite(certificate: Path | None = None) -> Iterator[str]:
    """Start an empty Azurite on a free port, and yield its address. It keeps everything in memory, and ends with this
    process, even if this process is killed. With a `certificate`, a PEM file that includes the key, it uses TLS
    and accepts Entra ID tokens from any issuer. Raises `OSError`."""
    if problem := missing_requirement():
        raise OSError(problem)
    command = ["node", "--import", _END_WITH_PARENT, str(_MAIN), "--blobPort", "0", "--inMemoryPersistence"]
    command += ["--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    if certificate is not None:
        command += ["--cert", str(certificate), "--key", str(certificate), "--oauth", "basic"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            for line in process.stdout:
                if ready := re.search(r"listens on (https?://\S+)", line):
                    yield ready[1]
                    return
            raise OSError("Azurite did not start")
        finally:
            process.terminate()


def make_container(address: str, name: str, certificate: Path | None = None) -> None:
    """Create a container in the Azurite at `address`, which uses this `certificate`, or no TLS if it is None."""
    verified: Any = {} if certificate is None else {"connection_verify": str(certificate)}
    with BlobServiceClient(f"{address}/{ACCOUNT}", KEY, **verified) as client:
        client.create_container(name)


def storage_options(address: str) -> dict[str, str]:
    """The storage options, including the account's key, of a table in an Azurite at `address`, or behind a proxy at
    `address`."""
    return _endpoint_options(address) | {"azure_storage_account_key": KEY}


def token_options(address: str) -> dict[str, str]:
    """Like `storage_options`, but for a table that is opened with tokens, in an Azurite with a self-signed
    certificate."""
    return _endpoint_options(address) | {"allow_http": "false", "allow_invalid_certificates": "true"}


def signature(container: str, seconds: float) -> str:
    """A shared access signature for a whole container. It expires after `seconds`."""
    expiry = datetime.now(timezone.utc) + timedelta(seconds=seconds)
    permission = ContainerSasPermissions(read=True, write=True, create=True, add=True, delete=True, list=True)
    return generate_container_sas(ACCOUNT, container, account_key=KEY, permission=permission, expiry=expiry)


def _endpoint_options(address: str) -> dict[str, str]:
    return {
        "azure_storage_account_name": ACCOUNT,
        "azure_storage_endpoint": f"{address}/{ACCOUNT}",
        "allow_http": "true",
    }
