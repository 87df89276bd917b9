"""Invariants of a group with two processors and two queries."""

from __future__ import annotations

from collections.abc import Callable

from tests.members import AnyMember
from tests.processors.group import MixedGroup
from tests.waiting import wait_until

#: Starts a member with this name.
Start = Callable[[str], AnyMember]


def share(group: MixedGroup, first: Start, second: Start, query: Start) -> None:
    """Two consumers and two queries share the partitions, which move only when members join or leave. The group
    survives a kill of the first consumer, a graceful stop of the second, and a kill and a stop of a query: every event
    is read, and more than once only because of a move."""
    consumers = [first("consumer-1"), second("consumer-2")]
    queries = [query("query-1"), query("query-2")]
    with group.watched():
        group.append(20)
        group.wait_shared(3, 3, 3, 3)
        assert group.stays(10 * group.interval)
        group.append(20)
        group.wait_read()
        twice = [event for event, times in group.read_events().items() if times > 1 and event[1] >= 20]
        assert not twice, "nothing is read twice where nothing moves"

        with group.producing():
            consumers[0].kill()
            queries[0].kill()
            group.wait_shared(6, 6)
            consumers.append(second("consumer-3"))
            group.wait_shared(4, 4, 4)
            query("query-3")  # takes one from each member
            group.wait_shared(3, 3, 3, 3)
            consumers[2].stop()
            queries[1].stop()
            wait_until(lambda: "query-2" not in group.owners().values(), "a query that stops gives everything back")
            group.wait_shared(6, 6)
        group.wait_read()
    print(f"{group.check_read_twice()} of {sum(group.appended)} events were read twice, {len(group.moves)} moves")
