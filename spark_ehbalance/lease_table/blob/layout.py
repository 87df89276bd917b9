"""The format of the Azure SDKs' blob checkpoint stores: builds and parses the blobs' names and metadata. Pure.

Source: `BlobCheckpointStore` of azure-eventhub-checkpointstoreblob 1.2.0 (Python) and
@azure/eventhubs-checkpointstore-blob 2.0.0 (JavaScript). All blobs are empty; the state is in their metadata:

    NAMESPACE/HUB/GROUP/ownership/PARTITION     ownerid, and epoch if a query wrote it
    NAMESPACE/HUB/GROUP/checkpoint/PARTITION    offset, sequencenumber

For NAMESPACE, see `blob_group`. Names are in lower case. Written metadata contains all keys, because both SDKs fail if
one is missing. Metadata that is read may lack any key or have empty values: Java writes no offset, and other SDKs write
no sequence number. The key `epoch` is this package's; no SDK reads it, and each SDK drops it when it writes the blob.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.position import START_OFFSET, Position

_OWNER, _EPOCH, _OFFSET, _SEQUENCE_NUMBER = "ownerid", "epoch", "offset", "sequencenumber"

#: Values that mean a missing offset: in JavaScript and .NET, in Python, and in earlier versions of .NET.
_NO_OFFSET = ("", "None", "no offset")

#: A 64-bit integer.
_NUMBER = re.compile(r"-?[0-9]{1,19}")

#: A blob's metadata as a client returns it; None if it has none.
Metadata = Mapping[str, str] | None


class BlobKind(str, Enum):
    """The kind of a partition's blob."""

    OWNERSHIP = "ownership"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint as written by any SDK. It identifies the last finished event by sequence number, by offset, by both,
    or by neither."""

    sequence_number: int | None = None
    offset: str | None = None

    @property
    def position(self) -> Position | None:
        """The position, or None without a sequence number (finding it would require reading the event at `offset`)."""
        return None if self.sequence_number is None else Position(self.sequence_number, self.offset)


def blob_group(group: Group, namespace: str | None) -> Group:
    """`group` as it appears in the names of its blobs: with `namespace` or, if that is None, with the group's own
    namespace without the port, as in .NET, Java and JavaScript."""
    return replace(group, namespace=namespace or group.namespace.partition(":")[0])


def group_prefix(group: Group) -> str:
    """The common prefix of the names of all blobs of `group`."""
    return f"{group.namespace}/{group.hub}/{group.consumer_group}/".lower()


def blob_name(group: Group, kind: BlobKind, partition: str) -> str:
    """The name of the blob of `kind` for `partition`."""
    return f"{group_prefix(group)}{kind.value}/{partition}".lower()


def parse_name(group: Group, name: str) -> tuple[BlobKind, str] | None:
    """The kind and the partition of the blob called `name`; None if the blob does not belong to `group`."""
    prefix = group_prefix(group)
    kind, _, partition = name.removeprefix(prefix).partition("/")
    if not name.startswith(prefix) or kind not in (BlobKind.OWNERSHIP.value, BlobKind.CHECKPOINT.value):
        return None
    return (BlobKind(kind), partition) if partition and "/" not in partition else None


def owner(metadata: Metadata) -> str | None:
    """The owner in the metadata of an ownership blob; None if it is missing or empty."""
    return _values(metadata).get(_OWNER) or None


def epoch(metadata: Metadata) -> int | None:
    """The epoch in the metadata of an ownership blob; None if an SDK, rather than this package, wrote the blob last."""
    number = _values(metadata).get(_EPOCH, "")
    return int(number) if _NUMBER.fullmatch(number) and 0 <= int(number) < 2**63 else None


def ownership_metadata(owner: str | None, epoch: int) -> dict[str, str]:
    """The metadata of an ownership blob; `owner` is None after a release."""
    return {_OWNER: owner or "", _EPOCH: str(epoch)}


def checkpoint(metadata: Metadata) -> StoredCheckpoint:
    """The checkpoint in the metadata of its blob. An invalid sequence number or offset counts as missing."""
    values = _values(metadata)
    number, offset = values.get(_SEQUENCE_NUMBER, ""), values.get(_OFFSET, "")
    known = _NUMBER.fullmatch(number) is not None and int(number) >= -1
    return StoredCheckpoint(int(number) if known else None, None if offset in _NO_OFFSET else offset)


def groups(names: Iterable[str]) -> set[Group]:
    """The groups to which blobs with these names belong."""
    paths = (name.split("/") for name in names)
    kinds = {kind.value for kind in BlobKind}
    return {Group(*path[:3]) for path in paths if len(path) == 5 and path[3] in kinds}


def checkpoint_metadata(position: Position) -> dict[str, str]:
    """The metadata of a checkpoint blob. If it has no offset, readers that need an offset begin at their own
    default."""
    before_all = START_OFFSET if position.sequence_number < 0 else ""
    return {_OFFSET: position.offset or before_all, _SEQUENCE_NUMBER: str(position.sequence_number)}


def _values(metadata: Metadata) -> dict[str, str]:
    # HTTP libraries may change the case of header names, and therefore of the keys.
    return {key.lower(): value.strip() for key, value in (metadata or {}).items() if value is not None}
