"""Checkpoints of Azure Functions before version 5 of its Event Hubs extension. Pure.

Source: `BlobCheckpointStoreInternal` of azure-sdk-for-net, which reads them where a partition has no blob in the
present layout. They are in blobs called NAMESPACE/HUB/GROUP/PARTITION, with capitals as configured:

    {"PartitionId": "0", "Owner": "…", "Token": "…", "Epoch": 386, "Offset": "8591964920", "SequenceNumber": 960180}

They were written by `EventProcessorHost`, whose other users have blobs called [PREFIX]GROUP/PARTITION: the event hub is
not known from these.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from spark_ehbalance.stores.blob.layout import StoredCheckpoint
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.position import START_OFFSET


def parse_name(group: Group, name: str) -> str | None:
    """The partition of the blob called `name`; None if it is not such a one of `group`."""
    *names, partition = name.split("/")
    return partition if len(names) == 3 and Group.of(*names) == group and partition.isdecimal() else None


def without_hub(names: Iterable[str]) -> str | None:
    """One of `names` that is a blob of an `EventProcessorHost` without the hub's name; None if there is none."""
    parts = {name: name.split("/") for name in names}
    return next((name for name, each in parts.items() if 1 < len(each) < 4 and each[-1].isdecimal()), None)


def checkpoint(content: bytes) -> StoredCheckpoint:
    """The checkpoint in a blob's content. Without an offset nothing was processed yet: the sequence number 0 is no
    event's then."""
    try:
        values = json.loads(content)
    except ValueError:
        values = None
    offset, number = (values.get("Offset"), values.get("SequenceNumber")) if isinstance(values, dict) else (None, None)
    if not isinstance(offset, str) or not offset:
        return StoredCheckpoint()
    if offset == START_OFFSET:
        return StoredCheckpoint(-1, offset)
    return StoredCheckpoint(number if type(number) is int and number >= 0 else None, offset)
