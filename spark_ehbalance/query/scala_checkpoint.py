"""Reads the positions of a query of the Scala connector (Azure/azure-event-hubs-spark) from its checkpointLocation.

The connector's offsets are `{"HUB": {"PARTITION": NUMBER, ...}, ...}` (`EventHubsSourceOffset`). A number is the first
sequence number after the batch: the connector reads from the previous batch's number (inclusive) to the batch's own
number (exclusive). See its `EventHubsSource.getBatch`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from spark_ehbalance.group.position import Position, partition_order
from spark_ehbalance.query.offsets import HubReference
from spark_ehbalance.query.positions import Positions
from spark_ehbalance.query.spark_checkpoint import CheckpointFolder

#: The version of Spark's offset log.
_VERSION = "v1"


class UnusableError(Exception):
    """The folder cannot be used. The message is a clause that states what is wrong with the folder, or which hubs can
    be chosen."""


def scala_query_positions(folder: CheckpointFolder, wanted: str | None) -> Positions:
    """The end of the query's last finished batch in the event hub `wanted`.

    If `wanted` is None, the query must have read exactly one hub. Raises `UnusableError`, also if no batch with this
    hub has finished.
    """
    planned, finished = folder.planned(), folder.finished()
    if not finished:
        raise UnusableError("no batch is finished, so there are no positions yet")
    if (last := finished[-1]) not in planned:
        raise UnusableError(f"batch {last} is finished, but offsets/{last} is missing")
    hub, others = wanted or _only_hub(folder, planned), set[str]()
    found = list(_of_hub(folder.offsets(last), hub, f"offsets/{last}", others, finished=True))
    if len(found) > 1:
        raise UnusableError(f"{len(found)} of its sources have read event hub {hub}, but only one is supported")
    if not found:
        named = ", ".join(sorted(others)) or "no event hub"
        raise UnusableError(f"its last finished batch, offsets/{last}, contains positions of {named}, not of {hub}")
    rereads = () if last == planned[-1] else (f"Batch {planned[-1]} did not finish, so its events are read again.",)
    named_positions = {partition: Position.before(number) for partition, number in found[0].items()}
    return Positions(HubReference(hub.lower()), named_positions, rereads)


def may_be_scala_query(folder: CheckpointFolder) -> bool:
    """Whether a source of the query may be the connector. Spark's Kafka source writes the same files, with topics in
    place of hubs and Kafka's offsets in place of sequence numbers, so the two cannot be distinguished."""
    return bool(_hubs(folder, folder.planned()))


def _hubs(folder: CheckpointFolder, planned: Sequence[int]) -> set[str]:
    """The hubs, or topics, in the offset log."""
    found = set[str]()
    for batch in planned:
        list(_of_hub(folder.offsets(batch), "", f"offsets/{batch}", found, finished=False))
    return found


def _only_hub(folder: CheckpointFolder, planned: Sequence[int]) -> str:
    found = _hubs(folder, planned)
    if len({name.lower() for name in found}) != 1:
        if not found:
            raise UnusableError("its sources have not read any event hub")
        raise UnusableError(f"its sources have read the event hubs {', '.join(sorted(found))}, so choose one of them")
    return found.pop()


def _of_hub(text: str, hub: str, file: str, others: set[str], *, finished: bool) -> Iterator[dict[str, int]]:
    """Yield each source's numbers in `hub`, from the `text` of an offset log file. The names of other hubs are added to
    `others`.

    Raises `UnusableError` if the file belongs to a finished batch and is damaged; unfinished batches do not count
    anyway."""
    version, _, *lines = (text + "\n\n").splitlines()  # at least two lines: the version and the batch's settings
    if finished and version != _VERSION:
        raise UnusableError(f"{file} is not an offset log of version {_VERSION[1:]}")
    for source, line in enumerate(lines):
        try:
            offset = json.loads(line)
        except (ValueError, RecursionError):  # a source without an offset, or one that does not write JSON
            if finished and line.startswith("{"):
                raise UnusableError(f"line {source + 3} of {file} is damaged") from None
            continue
        if isinstance(offset, dict) and (numbers := _numbers(offset, hub, file, others)) is not None:
            yield numbers


def _numbers(offset: Mapping[str, object], hub: str, file: str, others: set[str]) -> dict[str, int] | None:
    """The numbers of `hub` in an offset; None if the offset is from another hub or another kind of source."""
    if not offset or not all(isinstance(numbers, dict) for numbers in offset.values()):
        return None
    named = [name for name in offset if name.lower() == hub.lower()]  # Event Hubs ignores case
    if len(named) > 1:
        raise UnusableError(f"{file} contains event hub {hub} as {' and as '.join(named)}, which is ambiguous")
    if not named:
        others.update(offset)
        return None
    numbers = offset[named[0]]
    assert isinstance(numbers, dict)
    for partition, number in numbers.items():
        if type(number) is not int or not -(2**63) <= number < 2**63 or not partition.isdecimal():
            raise UnusableError(f"{file} contains {number!r} for partition {partition}, which is not a sequence number")
    # The connector treats numbers before the first retained event, such as -1, as that event.
    return {partition: max(0, numbers[partition]) for partition in sorted(numbers, key=partition_order)}
