"""What a consumer's member asks the hub. The client that uses the checkpoint store does the reading."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.hub.connection import Connection
from spark_ehbalance.hub.metadata import HubMetadata
from spark_ehbalance.hub.receiver import PartitionAddress, disconnect_readers
from spark_ehbalance.hub.resolve import resolve
from spark_ehbalance.values.position import Position
from spark_ehbalance.values.starting_positions import StartingPositions

#: Seconds between two requests of the list of partitions, to which people add some now and then.
_LIST_INTERVAL = 60.0

#: Seconds that resolving a starting position may take: a third of the default lease duration, because no lease is
#: renewed meanwhile.
_PATIENCE = 10.0


class NoHub:
    """For a store that was given no access to the hub: partitions and positions are those that the table has."""

    def partition_ids(self) -> tuple[str, ...]:
        return ()

    def created_ms(self) -> int | None:
        return None

    def starting_positions(self, partitions: Sequence[str]) -> Mapping[str, Position]:
        return {}

    def earliest_position(self, partition: str) -> Position:
        raise HubUnavailableError(f"partition {partition}: the store has no access to the hub")

    def offsets(self, positions: Mapping[str, int], owner_level: int) -> Mapping[str, str]:
        return {}

    def clear(self, epochs: Mapping[str, int]) -> None:
        """Nothing can be done: see `HubAccess.clear`."""

    def read_to_end(self, checkpoints: Mapping[str, Position]) -> Collection[str]:
        return ()


class HubAccess:
    """A hub that is asked when that is needed. `clear` and `read_to_end` may be called by another thread than the
    rest."""

    def __init__(self, connection: Connection, consumer_group: str, starting_position: StartingPositions) -> None:
        self._connection = connection
        self._consumer_group = consumer_group
        self._starting_position = starting_position
        self._partitions: tuple[str, ...] = ()
        self._created_ms: int | None = None
        self._listed_at = float("-inf")

    def partition_ids(self) -> tuple[str, ...]:
        """The hub's partitions. Raises `HubUnavailableError`, and `OptionError` if the starting position names a
        partition that the hub does not have."""
        if time.monotonic() - self._listed_at > _LIST_INTERVAL:
            with HubMetadata(self._connection, self._consumer_group) as metadata:
                partitions = metadata.partition_ids()
            self._starting_position.check(partitions)
            self._partitions, self._created_ms = partitions, metadata.created_ms
            self._listed_at = time.monotonic()
        return self._partitions

    def created_ms(self) -> int | None:
        """When the hub was created, in milliseconds since 1970, as of the last list of partitions."""
        return self._created_ms

    def starting_positions(self, partitions: Sequence[str]) -> Mapping[str, Position]:
        """What the starting position means now. Raises `HubUnavailableError`, and `OptionError` if it is beyond the end
        of a partition."""
        with HubMetadata(self._connection, self._consumer_group) as metadata:
            states = metadata.partition_states(partitions)
        self._starting_position.check_ends({each: state.end for each, state in states.items()}, "starting_position")
        return {
            each: resolve(self._starting_position.of(each), self._address(each), states[each], _PATIENCE)
            for each in partitions
        }

    def earliest_position(self, partition: str) -> Position:
        """The position before the first retained event. Raises `HubUnavailableError`."""
        with HubMetadata(self._connection, self._consumer_group) as metadata:
            return Position.before(metadata.partition_states([partition])[partition].begin)

    def offsets(self, positions: Mapping[str, int], owner_level: int) -> Mapping[str, str]:
        """None: a lease table needs sequence numbers alone."""
        return {}

    def clear(self, epochs: Mapping[str, int]) -> None:
        """Disconnect what former owners of these partitions still have open: a receiver with an owner level above the
        client's 0, which would shut the client out. A lease's epoch is above the levels of all former owners, so a
        receiver that opens with it and is closed again leaves the partition to the client."""
        disconnect_readers({self._address(partition): epoch for partition, epoch in epochs.items()})

    def read_to_end(self, checkpoints: Mapping[str, Position]) -> Collection[str]:
        """The partitions that have no event after their checkpoints. Raises `HubUnavailableError`."""
        with HubMetadata(self._connection, self._consumer_group) as metadata:
            states = metadata.partition_states(checkpoints)
        return {p for p, checkpoint in checkpoints.items() if states[p].end <= checkpoint.next}

    def _address(self, partition: str) -> PartitionAddress:
        return PartitionAddress(self._connection, self._consumer_group, partition)


Hub = NoHub | HubAccess
