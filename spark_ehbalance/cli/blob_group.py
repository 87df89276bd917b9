"""What the commands read and write of a group in a container of the Azure SDKs' checkpoint store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spark_ehbalance.cli import legacy_checkpoints
from spark_ehbalance.cli.common import warn
from spark_ehbalance.cli.options import pairs
from spark_ehbalance.errors import ConflictError, OptionError
from spark_ehbalance.source.options import checked_namespace, storage_options
from spark_ehbalance.stores.base import REQUEST_TIMEOUT
from spark_ehbalance.stores.blob.container import Container, LostError
from spark_ehbalance.stores.blob.layout import (
    Kind,
    StoredCheckpoint,
    blob_name,
    checkpoint,
    checkpoint_metadata,
    groups,
    namesakes,
    of_blobs,
    owner,
    parse_name,
)
from spark_ehbalance.stores.blob.locations import is_known, parse_location
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.position import Position
from spark_ehbalance.values.secrets import shown


@dataclass(frozen=True, slots=True)
class BlobGroup:
    """What `container` has of `group`: the checkpoints by partition, and the ETags of their blobs; and when each owner
    has last shown a sign of life, in milliseconds since 1970 by the storage's clock. Methods raise
    `StoreUnavailableError`."""

    container: Container
    group: Group
    checkpoints: Mapping[str, StoredCheckpoint]
    etags: Mapping[str, str]
    owners: Mapping[str, int]

    def has(self, partition: str, position: Position) -> bool:
        """Whether `write` would change nothing."""
        return self.checkpoints.get(partition) == checkpoint(checkpoint_metadata(position))

    def write(self, partition: str, position: Position) -> None:
        """Write a checkpoint. Raises `ConflictError` if there is a newer one than in `checkpoints`."""
        name = blob_name(self.group, Kind.CHECKPOINT, partition)
        try:
            self.container.replace(name, checkpoint_metadata(position), self.etags.get(partition))
        except LostError:
            raise ConflictError(f"another process has written a checkpoint of partition {partition}") from None

    def legacy(self) -> dict[str, StoredCheckpoint]:
        """The legacy checkpoints of the partitions that have no other. Raises `OptionError` if it is not clear which
        one counts."""
        named: dict[str, str] = {}
        for name in self.container.list(""):
            partition = legacy_checkpoints.parse_name(self.group, name)
            if partition is None or partition in self.checkpoints:
                continue
            if partition in named:
                raise OptionError(f"the container has {named[partition]} and {name}: it is not clear which one counts")
            named[partition] = name
        return {p: legacy_checkpoints.checkpoint(self.container.content(name)) for p, name in named.items()}

    def others(self) -> str:
        """The groups that are there, for an error."""
        names = self.container.list("")
        found = sorted(map(str, groups(names)))
        text = ", ".join(found[:5]) + (" and more" if len(found) > 5 else "") if found else "none"
        if host := legacy_checkpoints.without_hub(names):
            text += f"; {host} and the like are an EventProcessorHost's, whose event hub is unknown"
        return text


def container_options(given: list[str] | None, option: str, storage_option: list[str] | None) -> dict[str, str]:
    """The NAME=VALUE texts of a container's own `option`; by default the lease table's that a container knows. Raises
    `OptionError`."""
    return pairs(given, option) or {name: value for name, value in pairs(storage_option).items() if is_known(name)}


@contextlib.contextmanager
def opened(
    text: str, group: Group, namespace: str | None, options: Mapping[str, str], option: str
) -> Iterator[BlobGroup]:
    """What the container at the address `text`, which was given as `option`, has of `group`, whose blobs are called by
    `namespace` if it is given. `options` are those of its storage, and may be references.

    Warns of blobs that may be meant to be the group's. Raises `OptionError`, `StoreUnavailableError`."""
    group = of_blobs(group, None if namespace is None else checked_namespace(namespace, "--blob-namespace"))
    try:
        location = parse_location(text)
    except ValueError as allowed:
        raise OptionError(f"{option}={shown(text)} is wrong: allowed is {allowed}") from None
    with contextlib.closing(Container(location, storage_options(options, {}, None), REQUEST_TIMEOUT)) as container:
        blobs = container.list("")
        if problem := namesakes(group, blobs):
            warn(f"{location} {problem}")
        checkpoints, etags, owners = dict[str, StoredCheckpoint](), dict[str, str](), dict[str, int]()
        for name, blob in blobs.items():
            kind, partition = parse_name(group, name) or (None, "")
            if kind is Kind.CHECKPOINT:
                checkpoints[partition], etags[partition] = checkpoint(blob.metadata), blob.etag
            elif kind is Kind.OWNERSHIP and (id := owner(blob.metadata)):
                owners[id] = max(blob.modified_ms, owners.get(id, 0))
        yield BlobGroup(container, group, checkpoints, etags, owners)
