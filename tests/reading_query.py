"""A query without Spark that reads its batches from the hub."""

from __future__ import annotations

from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.eventhub.rows import sequence_numbers
from spark_ehbalance.query.assembly import start_planner
from spark_ehbalance.query.offsets import StreamOffset, group_name
from spark_ehbalance.query.options import Options
from spark_ehbalance.query.range_reader import read_range
from spark_ehbalance.query.receivers import Receivers
from tests.query.queries import Query


class ReadingQuery(Query):
    def __init__(self, options: Options, owner: str) -> None:
        self.options = options
        self.receivers = Receivers()
        start = StreamOffset(owner, group=group_name(options.lease_table))
        super().__init__(start_planner(options, owner, start), owner, start)

    def run(self, end: StreamOffset) -> list[OffsetRange]:
        ranges = self.planner.ranges(end)
        for range_ in ranges:
            level = self.options.capabilities.owner_level(range_.epoch)
            for rows in read_range(self.options, range_, self.owner, level, receivers=self.receivers):
                self.seen += [(range_.partition, number) for number in sequence_numbers(rows).to_pylist()]
        self.finished = self.logged = end
        return ranges

    def stop(self) -> None:
        super().stop()
        self.receivers.close()
