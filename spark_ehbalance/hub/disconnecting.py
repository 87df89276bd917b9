"""Disconnects readers with lower owner levels: a receiver with the level opens, and is closed again."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.hub.receiver import Disconnected, PartitionAddress, Receiver, Unreachable
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Partitions at once: each takes a connection, and mostly waits.
_AT_ONCE = 8


def disconnect_readers(owner_levels: Mapping[PartitionAddress, int]) -> None:
    """Disconnect the readers of each partition that have this owner level or a lower one. A failure is logged only."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(_disconnect, owner_levels, owner_levels.values()))


def _disconnect(address: PartitionAddress, owner_level: int) -> None:
    try:
        with contextlib.closing(Receiver(address, 0, owner_level=owner_level, prefetch=1)) as receiver:
            receiver.receive(1, 0.0, 0)
    except (Disconnected, Unreachable, EhBalanceError) as error:
        _LOG.warning("partition %s: former owners' receivers could not be disconnected: %s", address.partition, error)
