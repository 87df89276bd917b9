"""The load meter: rates and backlogs as moving averages."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spark_ehbalance.group.member.load_meter import LoadMeter
from spark_ehbalance.group.model import Load, MemberLoad


class Meter:
    """A load meter and its latest value."""

    def __init__(self) -> None:
        self.value = LoadMeter()

    def update(self, now: float, ends: Mapping[str, int], read: Mapping[str, int] | None = None) -> Mapping[str, Load]:
        """Update the meter and return the loads; by default, there is no backlog."""
        before, self.value = self.value, self.value.measured(now, ends, ends if read is None else read)
        assert self.value is not before, "it was time for that"
        return self.value.loads()

    def run(self, begin: int, end: int, rate: float, *, lag: int = 0, first: int = 0) -> Load:
        """Measure partition 0 every second from `begin` to `end` at `rate` events per second; returns the last load."""
        for now in range(begin, end + 1):
            count = first + round(rate * (now - begin))
            loads = self.update(now, {"0": count}, {"0": count - lag})
        return loads["0"]


def test_rate_follows_lasting_changes_but_smooths_bursts() -> None:
    meter = Meter()
    with pytest.raises(KeyError):  # the previous owner's value applies until then
        meter.run(0, 9, 10.0)
    assert meter.run(10, 11, 10.0, first=100).rate == pytest.approx(10.0, rel=0.05), "it is as heavy as before it moved"
    meter.run(12, 300, 10.0, first=120)
    assert meter.update(301, {"0": 3010 + 300})["0"].rate < 16, "30 times the rate, for a second"
    assert meter.run(302, 602, 40.0, first=3310).rate == pytest.approx(40.0, rel=0.02)


def test_added_partition_has_its_own_warm_up() -> None:
    meter = Meter()
    meter.run(0, 60, 10.0)
    meter.update(61, {"0": 610, "1": 7})
    assert meter.update(65, {"0": 650, "1": 7}).keys() == {"0"}
    assert meter.update(71, {"0": 710, "1": 1007})["1"].rate == pytest.approx(100.0)


def test_backlog_is_the_number_of_unread_events() -> None:
    meter = Meter()
    assert meter.run(0, 200, 0.0, lag=120) == Load(0.0, pytest.approx(120.0))  # type: ignore[arg-type]
    assert 30 < meter.run(201, 260, 0.0).backlog < 60, "after a minute about a third is left of the average"


def test_missing_partitions_are_omitted_and_nothing_is_negative() -> None:
    meter = Meter()
    meter.update(0.0, {"0": 500}, {"0": 500, "9": 3})
    loads = meter.update(20.0, {"0": 10}, {"0": 500, "9": 3})
    assert loads == {"0": Load(0.0, 0.0)}, "the hub was recreated"
    assert meter.update(40.0, {"0": 10}, {}) == {}, "given away"
    assert meter.update(60.0, {"0": 10}, {"0": 10}) == {}, "and come back: restarted"


# --- the member --------------------------------------------------------------------------------------------------


def test_member_load_is_the_sum_of_its_partitions() -> None:
    meter = Meter()
    assert meter.value.member_load() == MemberLoad(0.0, 0.0, 0.0)
    for now in range(5):
        meter.update(now, {"0": 10 * now, "1": 30 * now + 7}, {"0": 10 * now, "1": 30 * now})
    load = meter.value.member_load()
    assert (load.rate, load.backlog) == (pytest.approx(40.0), pytest.approx(7.0)), "also before each is worth a report"
    meter.update(10, {"0": 100}, {"0": 100})
    assert meter.value.member_load().rate == pytest.approx(10.0)


def test_measurements_are_taken_once_an_interval() -> None:
    value = LoadMeter().measured(5.0, {"0": 1}, {"0": 0})
    assert value.measured(5.9, {"0": 9}, {"0": 0}) is value


def test_batch_time_is_measured_from_plan_to_finish() -> None:
    meter = Meter()
    meter.value = meter.value.batch_ended(3.0, 7)
    assert (meter.value.member_load().batch_seconds, meter.value.events) == (0.0, 0), "there was no batch yet"
    meter.value = meter.value.batch_begun(10.0).batch_ended(14.0, 7).batch_ended(100.0, 7)
    assert meter.value.member_load().batch_seconds == 4.0, "the end that is reported first counts"
    assert meter.value.events == 7
    for begin in range(200, 800, 2):
        meter.value = meter.value.batch_begun(begin).batch_ended(begin + 1.0)
    assert meter.value.member_load().batch_seconds == pytest.approx(1.0, rel=0.05)
