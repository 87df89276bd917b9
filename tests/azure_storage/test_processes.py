"""Azurite and the proxy end with the process that has started them, also when it is killed."""

from __future__ import annotations

import socket
import subprocess
import sys
from urllib.parse import urlsplit

from tests.waiting import wait_until

START = """
import time
from chaos.storage.azurite import azurite
from chaos.storage.proxy import StorageProxy

if __name__ == "__main__":
    with azurite() as storage, StorageProxy(storage) as proxy:
        print(storage, proxy.address, flush=True)
        time.sleep(60)
"""


def listens(address: str) -> bool:
    url = urlsplit(address)
    with socket.socket() as client:
        return client.connect_ex((str(url.hostname), url.port or 0)) == 0


def test_they_end_with_a_process_that_is_killed(storage: str) -> None:
    with subprocess.Popen([sys.executable, "-c", START], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        addresses = process.stdout.readline().split()
        assert [listens(each) for each in addresses] == [True, True]
        process.kill()
        wait_until(lambda: not any(map(listens, addresses)), "both have ended")
