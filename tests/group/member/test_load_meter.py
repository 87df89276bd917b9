"""The load meter: rates and backlogs as moving averages."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spark_ehbalance.group.member.load_meter import CpuTime, LoadMeter, MemberMeter
from spark_ehbalance.group.model import Load, MemberLoad
from spark_ehbalance.query.processes import cpu_time


def measure(meter: LoadMeter, begin: int, end: int, rate: float, *, lag: int = 0, first: int = 0) -> Load | None:
    """Measure partition 0 every second from `begin` to `end`, with `rate` events per second; the last load told."""
    last = None
    for now in range(begin, end + 1):
        count = first + round(rate * (now - begin))
        last = told(meter, now, {"0": count}, {"0": count - lag}).get("0", last)
    return last


def told(meter: LoadMeter, now: float, ends: dict[str, int], read: dict[str, int] | None = None) -> Mapping[str, Load]:
    """The loads; by default everything is read."""
    loads = meter.update(now, ends, ends if read is None else read)
    assert loads is not None
    return loads


def test_a_steady_rate_is_told_as_it_is_and_not_before_it_is_known() -> None:
    meter = LoadMeter()
    assert measure(meter, 1000, 1009, 50.0) is None, "what the last owner has told stands until then"
    load = measure(meter, 1010, 1011, 50.0, first=500)
    assert load is not None
    assert load.rate == pytest.approx(50.0, rel=0.05), "a partition that has moved is as heavy as before"


def test_a_partition_that_comes_later_has_a_beginning_of_its_own() -> None:
    meter = LoadMeter()
    measure(meter, 0, 60, 10.0)
    told(meter, 61, {"0": 610, "1": 7})
    assert told(meter, 65, {"0": 650, "1": 7}).keys() == {"0"}
    assert told(meter, 71, {"0": 710, "1": 1007})["1"].rate == pytest.approx(100.0)


def test_a_change_is_followed_within_minutes_and_a_burst_hardly() -> None:
    meter = LoadMeter()
    measure(meter, 0, 300, 10.0)
    assert told(meter, 301, {"0": 3010 + 300})["0"].rate < 16, "30 times the rate, for a second"
    changed = measure(meter, 302, 602, 40.0, first=3310)
    assert changed is not None
    assert changed.rate == pytest.approx(40.0, rel=0.02)


def test_the_backlog_is_what_is_still_to_be_read() -> None:
    meter = LoadMeter()
    load = measure(meter, 0, 200, 0.0, lag=120)
    assert load == Load(0.0, pytest.approx(120.0))  # type: ignore[arg-type]
    load = measure(meter, 201, 260, 0.0)
    assert load is not None
    assert 30 < load.backlog < 60, "after a minute about a third is left of the average"


def test_partitions_that_are_not_there_are_left_out_and_nothing_is_negative() -> None:
    meter = LoadMeter()
    meter.update(0.0, {"0": 500}, {"0": 500, "9": 3})
    loads = meter.update(20.0, {"0": 10}, {"0": 500, "9": 3})
    assert loads == {"0": Load(0.0, 0.0)}, "the hub was recreated"
    assert meter.update(40.0, {"0": 10}, {}) == {}, "given away"
    assert meter.update(60.0, {"0": 10}, {"0": 10}) == {}, "and come back: begun anew"


# --- the member --------------------------------------------------------------------------------------------------

NOTHING = Load(0.0, 0.0)


def test_all_partitions_together_are_what_the_member_has_to_read() -> None:
    meter = LoadMeter()
    assert meter.total() == NOTHING
    for now in range(5):
        meter.update(now, {"0": 10 * now, "1": 30 * now + 7}, {"0": 10 * now, "1": 30 * now})
    assert meter.total() == Load(pytest.approx(40.0), pytest.approx(7.0)), "also before each is worth telling"  # type: ignore[arg-type]
    meter.update(10, {"0": 100}, {"0": 100})
    assert meter.total().rate == pytest.approx(10.0)


def test_batches_are_timed_from_being_planned_to_being_finished() -> None:
    meter = MemberMeter()
    meter.batch_ends(3.0)
    assert meter.load(Load(5.0, 6.0)) == MemberLoad(5.0, 6.0, 0.0, None), "there was no batch yet"
    meter.batch_begins(10.0)
    meter.batch_ends(14.0)
    meter.batch_ends(100.0)
    assert meter.load(NOTHING).batch_seconds == 4.0, "the end that is reported first counts"
    for begin in range(200, 800, 2):
        meter.batch_begins(begin)
        meter.batch_ends(begin + 1.0)
    assert meter.load(NOTHING).batch_seconds == pytest.approx(1.0, rel=0.05)


def test_the_host_s_cpu_is_the_busy_part_of_the_time_between_two_readings() -> None:
    meter = MemberMeter()
    meter.host(0.0, CpuTime(1000, 5000))
    assert meter.load(NOTHING).cpu is None, "one reading tells nothing"
    meter.host(1.0, CpuTime(1150, 5200))
    assert meter.load(NOTHING).cpu == pytest.approx(0.75)
    for now in range(2, 602):
        meter.host(now, CpuTime(1150 + 50 * now, 5200 + 200 * now))
    assert meter.load(NOTHING).cpu == pytest.approx(0.25, abs=0.01)
    meter.host(700, CpuTime(0, 10))
    assert meter.load(NOTHING).cpu == pytest.approx(0.25, abs=0.01), "the counters were set back"
    meter.host(701, None)
    assert meter.load(NOTHING).cpu is None, "it does not tell any more"


def test_this_host_tells_its_times() -> None:
    times = cpu_time()
    assert times is not None
    assert 0 < times.busy < times.total
