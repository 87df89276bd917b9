"""Invalid blobs, and storage that rejects some writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from azure.storage.blob import ContainerClient

from chaos.storage.azurite import KEY
from spark_ehbalance.lease_table.blob.layout import BlobKind, blob_name
from spark_ehbalance.query.options import Options
from tests.processors.conftest import Start
from tests.processors.group import PARTITIONS, MixedGroup
from tests.waiting import wait_until


@pytest.fixture
def container(group: MixedGroup) -> Iterator[ContainerClient]:
    with ContainerClient(group.service, group.container, KEY) as client:
        yield client


Write = Callable[..., str]


@pytest.fixture
def write(container: ContainerClient, options: Options) -> Write:
    """Writes a blob with this metadata for the group; returns its name."""

    def write(kind: BlobKind, partition: str, **metadata: str) -> str:
        name = blob_name(options.group, kind, partition)
        container.upload_blob(name, b"", metadata=metadata, overwrite=True)
        return name

    return write


@pytest.mark.parametrize("kind", BlobKind)
def test_immutable_blob_is_reported_and_blocks_nothing_else(
    group: MixedGroup,
    write: Write,
    start: Start,
    container: ContainerClient,
    caplog: pytest.LogCaptureFixture,
    kind: BlobKind,
) -> None:
    group.append(5)
    lease = container.get_blob_client(write(kind, "0")).acquire_lease()
    running = start()
    others = PARTITIONS - 1  # a partition without a stored position is not owned
    wait_until(lambda: len(running.owned()) == others, "the query owns what it can own")
    running.read(5 * others)
    running.planner.finish(running.finished)
    wait_until(lambda: "could not be written: 412 LeaseIdMissing" in caplog.text, "it is reported")
    wait_until(lambda: group.checkpoints() == dict.fromkeys(running.owned() - {"0"}, 4), "the others are checkpointed")
    group.append(5)
    lease.release()
    running.read(5 * 2 * PARTITIONS)
    running.planner.finish(running.finished)
    wait_until(lambda: group.checkpoints() == dict.fromkeys(running.owned(), 9), "all are checkpointed")
    assert len(set(running.seen)) == len(running.seen)
    assert caplog.text.count("LeaseIdMissing") < 5, "it is reported once"


def test_group_survives_a_recreated_container(
    group: MixedGroup, start: Start, container: ContainerClient, caplog: pytest.LogCaptureFixture
) -> None:
    group.append(5)
    running = start()
    wait_until(lambda: len(running.owned()) == PARTITIONS, "the query owns every partition")
    running.read(5 * PARTITIONS)
    running.planner.finish(running.finished)
    wait_until(lambda: group.checkpoints() == dict.fromkeys(running.owned(), 4), "all are checkpointed")
    container.delete_container()
    wait_until(lambda: "could not be read: it does not exist" in caplog.text, "it is reported")
    container.create_container()
    wait_until(lambda: len(group.owners()) == PARTITIONS, "the query has claimed everything again")
    group.append(5)
    running.read(10 * PARTITIONS)
    assert len(set(running.seen)) == len(running.seen), "it continues at its position"
