"""A partition that has events but delivers none does not hold up others: the rules, and queries with the emulator."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.group.changes import Stall
from spark_ehbalance.group.member.membership import OwnedLease
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.position import Position
from spark_ehbalance.query.stalls import StallProbe, backoff, pending_probes, update_probes, with_probe_results
from tests.query.queries import Event, Group
from tests.query.support import HUB
from tests.reading_query import ReadingQuery
from tests.waiting import wait_until

# --- the rules -------------------------------------------------------------------------------------------------


def stalled(times: int, at: int = 7, epoch: int = 3) -> OwnedLease:
    return OwnedLease(epoch, Position.before(at), renewed=0.0, lasts=30.0, stall_count=times)


def at(next: int) -> dict[str, Position]:
    return {"0": Position.before(next)}


def test_back_off_doubles_up_to_ten_minutes() -> None:
    assert [backoff(times) for times in (1, 2, 3, 4, 6, 7, 2**62)] == [0, 30, 60, 120, 480, 600, 600]


def test_only_stalled_partitions_are_probed() -> None:
    holdings = {"0": stalled(1), "1": stalled(0), "2": stalled(2)}
    probes = update_probes({}, holdings, {}, 100.0)
    assert probes == {"0": StallProbe(7, 1, 100.0), "2": StallProbe(7, 2, 130.0)}
    assert update_probes(probes, holdings, {}, 120.0) == probes, "the back-off begins when the count is first seen"
    assert update_probes({}, holdings, {}, 100.0, at_once=True)["2"].due == 100.0


def test_back_off_survives_a_move_away_and_back() -> None:
    probes = update_probes({}, {"0": stalled(2)}, {}, 100.0)
    assert update_probes(update_probes(probes, {}, {}, 110.0), {"0": stalled(2, epoch=9)}, {}, 120.0) == probes


@pytest.mark.parametrize("now", [stalled(2), stalled(1, at=9)], ids=["again", "elsewhere"])
def test_new_stall_needs_a_new_probe(now: OwnedLease) -> None:
    received = {"0": StallProbe(7, 1, 100.0, end=8)}
    assert update_probes(received, {"0": now}, {}, 200.0)["0"].end is None


def test_progress_ends_a_stall_before_it_is_committed() -> None:
    received = {"0": StallProbe(7, 1, 100.0, end=8)}
    assert update_probes(received, {"0": stalled(1)}, at(7), 200.0) == received
    assert update_probes(received, {"0": stalled(1)}, at(8), 200.0) == {}


def test_probe_without_an_event_is_repeated() -> None:
    probes = {
        "0": StallProbe(7, 1, 100.0),
        "1": StallProbe(7, 1, 100.0),
        "2": StallProbe(7, 1, 100.0),
        "3": StallProbe(9, 1, 100.0),
    }
    after = with_probe_results(probes, {"0": 7, "1": 7, "3": 7}, {"0": 12, "3": 12}, 160.0)
    assert after == probes | {"0": StallProbe(7, 1, 160.0, end=12), "1": StallProbe(7, 1, 160.0)}
    assert {p: lease.readable_to for p, lease in after.items()} == {"0": 12, "1": 7, "2": 7, "3": 9}


def test_query_waits_for_a_probe_only_while_it_owns_the_partition() -> None:
    """Otherwise, the query would never become idle again."""
    probes = update_probes({}, {"0": stalled(2), "1": stalled(1)}, {}, 100.0)
    assert pending_probes(probes, {"0": stalled(2)}) == {"0": probes["0"]}
    assert pending_probes(with_probe_results(probes, {"0": 7}, {"0": 9}, 160.0), {"0": stalled(2)}) == {}


# --- queries ---------------------------------------------------------------------------------------------------


PARTITIONS = 4


def test_silent_partition_does_not_stop_the_query(emulator: Emulator, tmp_path: Path) -> None:
    with closing(Group(emulator, tmp_path, PARTITIONS)) as group:
        options = group.options(receiverTimeout="1s")
        queries = [ReadingQuery(options, "a"), ReadingQuery(options, "b")]
        group.queries += queries
        group.wait_owned(2, 2)
        emulator.pause(HUB, 0)
        group.append(20, PARTITIONS)

        def read_events() -> Counter[Event]:
            """Run another batch and return all events read so far."""
            for query in queries:
                query.step()
            return Counter(event for query in queries for event in query.seen)

        wait_until(lambda: read_events() and group.leases()["0"].stall_count == 1, "it has stalled")
        group.append(20, PARTITIONS, first=1)
        wait_until(
            lambda: read_events().total() >= 120 and group.leases()["0"].owner, "the others are read; it is owned again"
        )
        assert not [event for event in read_events() if event[0] == "0"]
        assert group.leases()["0"].stall_count == 1, "it is not planned"

        emulator.resume(HUB, 0)
        wait_until(
            lambda: read_events() == group.everything() and group.leases()["0"].stall_count == 0, "its stall is over"
        )


@pytest.mark.parametrize("silent", [False, True])
def test_available_now_probes_a_stalled_partition_and_ends(
    emulator: Emulator, tmp_path: Path, silent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Group(emulator, tmp_path, 2)) as group:
        group.append(5, 2)
        query = group.query(leaseDuration="10s")
        query.planner.fix_ends()
        if silent:
            emulator.pause(HUB, 0)
        stall = Stall(by=Author("a", ""), at_ms=0, partition="0", epoch=group.leases()["0"].epoch)
        group.order(stall)
        wait_until(
            lambda: stall.epoch + 2 in {holding.epoch for holding in query.planner.readable().values()}, "it has it"
        )
        while query.step():
            pass
        assert {p for p, _ in query.seen} == ({"1"} if silent else {"0", "1"})
        assert len(query.seen) == (5 if silent else 10)
        assert "Partition 0 has stalled at sequence number 0" in caplog.text
