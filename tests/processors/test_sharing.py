"""The Azure SDKs' unmodified processors share a group with queries."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from azure.storage.blob import ContainerClient

from chaos.storage.azurite import ACCOUNT, KEY, make_container
from spark_ehbalance.emulator import Emulator
from tests.processors.group import PARTITIONS, MixedGroup
from tests.processors.sharing import share

#: AMQP's default port, which connection strings can omit, so that blob names are the same in all languages. The
#: loopback address belongs to this process alone.
PORT, HOST = 5672, f"127.77.{os.getpid() // 256 % 256}.{os.getpid() % 256}"


@pytest.fixture
def group(storage: str, tmp_path: Path) -> Iterator[MixedGroup]:
    container = uuid.uuid4().hex
    make_container(storage, container)
    with Emulator({"hub": PARTITIONS}, host=HOST, port=PORT) as emulator:
        connection = emulator.connection_string("hub").replace(f":{PORT}", "")
        group = MixedGroup(emulator, f"{storage}/{ACCOUNT}", container, tmp_path, connection=connection)
        try:
            yield group
        finally:
            group.close()


@pytest.mark.heavy
def test_python_and_javascript_consumers_share_with_two_queries(group: MixedGroup) -> None:
    share(group, group.consumer, group.javascript, group.query)


@pytest.mark.heavy
def test_java_and_python_consumers_share_with_two_queries(group: MixedGroup, jars: str) -> None:
    share(group, partial(group.java, jars=jars), group.consumer, group.query)


def test_java_consumer_and_query_share_at_another_port(storage: str, tmp_path: Path, jars: str) -> None:
    """The connection string has a port, which is in the names of Python's blobs but not in Java's and the query's.
    Java's client connects to it."""
    container = uuid.uuid4().hex
    make_container(storage, container)
    with Emulator({"hub": 8}) as emulator:
        group = MixedGroup(emulator, f"{storage}/{ACCOUNT}", container, tmp_path, partitions=8, more={})
        assert f"sb://localhost:{emulator.port}" in group.connection
        try:
            java = group.java("java-1", jars=jars)
            group.query("query-1")
            with group.watched(), group.producing():
                group.wait_shared(4, 4)
                java.kill()
                group.wait_shared(8)
            group.wait_read()
            group.check_read_twice()
            with ContainerClient(group.service, container, KEY) as client:
                assert {name.split("/")[0] for name in client.list_blob_names()} == {"localhost"}
        finally:
            group.close()
