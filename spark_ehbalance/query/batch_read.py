"""The ranges of a batch read (`spark.read`): each partition from its starting to its ending position.

The positions are resolved once, when the read is planned.
"""

from __future__ import annotations

from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub.metadata import HubMetadata
from spark_ehbalance.eventhub.ranges import OffsetRange, retained_start
from spark_ehbalance.eventhub.receiver import PartitionAddress, check_group
from spark_ehbalance.eventhub.resolve import resolve
from spark_ehbalance.query.options import Options
from spark_ehbalance.query.start_checks import check_start
from spark_ehbalance.text import logger

_LOG = logger(__name__)


def batch_ranges(options: Options) -> list[OffsetRange]:
    """The range of each partition that has events to read.

    Raises `HubUnavailableError`; `MissingError` if the hub or consumer group does not exist; `DataLossError`;
    `OptionError` if a position lies beyond the last event, if a range ends before it starts, or if the positions do not
    match the hub's partitions.
    """
    with HubMetadata(options.connection, options.consumer_group) as metadata:
        partitions = metadata.partition_ids()
        states = metadata.partition_states(partitions)
    check_group(PartitionAddress(options.connection, options.consumer_group, partitions[0]))  # before tasks start
    options.starting_position.check(partitions)
    options.ending_position.check(partitions)
    check_start(options, states)
    ranges = []
    for partition in partitions:
        address, state = PartitionAddress(options.connection, options.consumer_group, partition), states[partition]
        wanted = resolve(options.starting_position.position(partition), address, state, options.receiver_timeout).next
        start, warning = retained_start(partition, wanted, state, options.fail_on_data_loss)
        if warning:
            _LOG.warning(warning)
        end = resolve(options.ending_position.position(partition), address, state, options.receiver_timeout).next
        lowest = min(wanted, start)  # all requested events may have aged out
        if not lowest <= end <= state.end:
            problem = f"endingPosition is sequence number {end} (exclusive)"
            allowed = f"{lowest} (where reading starts) to {state.end} (after the last event)"
            raise OptionError("EHB_POSITION_INVALID", partition=partition, problem=problem, allowed=allowed)
        if start < end:
            ranges.append(OffsetRange(partition, 0, start, end))
    return ranges
