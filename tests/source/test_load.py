"""The load meter: rates and backlogs as moving averages."""

from __future__ import annotations

import random

import pytest

from spark_ehbalance.leases.model import Load
from spark_ehbalance.source.load import LoadMeter


def measure(meter: LoadMeter, begin: int, end: int, rate: float, *, lag: int = 0, first: int = 0) -> Load | None:
    """Measure partition 0 every second from `begin` to `end`, with `rate` events per second; the last load told."""
    last = None
    for now in range(begin, end + 1):
        count = first + round(rate * (now - begin))
        loads = meter.update(now, {"0": count}, {"0": count - lag})
        assert loads is not None
        last = loads.get("0", last)
    return last


def test_a_steady_rate_is_told_as_it_is_and_not_before_it_is_known() -> None:
    meter = LoadMeter()
    assert measure(meter, 1000, 1009, 50.0) is None, "what the last owner has told stands until then"
    load = measure(meter, 1010, 1011, 50.0, first=500)
    assert load is not None
    assert load.rate == pytest.approx(50.0, rel=0.05), "a partition that has moved is as heavy as before"


def test_a_partition_that_comes_later_has_a_beginning_of_its_own() -> None:
    meter = LoadMeter()
    measure(meter, 0, 60, 10.0)
    assert meter.update(61, {"0": 610, "1": 7}, {"0": 610, "1": 7}) is not None
    loads = meter.update(65, {"0": 650, "1": 7}, {"0": 650, "1": 7})
    assert loads is not None
    assert loads.keys() == {"0"}
    loads = meter.update(71, {"0": 710, "1": 1007}, {"0": 710, "1": 1007})
    assert loads is not None
    assert loads["1"].rate == pytest.approx(100.0)


def test_a_change_is_followed_within_minutes_and_a_burst_hardly() -> None:
    meter = LoadMeter()
    measure(meter, 0, 300, 10.0)
    burst = meter.update(301, {"0": 3010 + 300}, {"0": 3010 + 300})
    assert burst is not None
    assert burst["0"].rate < 16, "30 times the rate, for a second"
    changed = measure(meter, 302, 602, 40.0, first=3310)
    assert changed is not None
    assert changed.rate == pytest.approx(40.0, rel=0.02)


def test_noise_is_averaged_out() -> None:
    meter, rng, end = LoadMeter(), random.Random(1), 0
    rates = []
    for now in range(600):
        end += round(1000 * rng.uniform(0.8, 1.2))
        loads = meter.update(now, {"0": end}, {"0": end})
        assert loads is not None
        rates += [load.rate for load in loads.values()]
    assert 950 < min(rates[60:]) < max(rates[60:]) < 1050


def test_the_backlog_is_what_is_still_to_be_read() -> None:
    meter = LoadMeter()
    load = measure(meter, 0, 200, 0.0, lag=120)
    assert load == Load(0.0, pytest.approx(120.0))  # type: ignore[arg-type]
    load = measure(meter, 201, 260, 0.0)
    assert load is not None
    assert 30 < load.backlog < 60, "after a minute about a third is left of the average"


def test_it_is_measured_once_a_second_at_the_most() -> None:
    meter = LoadMeter()
    assert meter.update(100.0, {"0": 0}, {"0": 0}) is not None
    assert meter.update(100.5, {"0": 1000}, {"0": 0}) is None
    assert meter.update(101.0, {"0": 1000}, {"0": 0}) is not None


def test_long_pauses_between_measurements_count_as_long() -> None:
    meter = LoadMeter()
    meter.update(0.0, {"0": 0}, {"0": 0})
    loads = meter.update(60.0, {"0": 6000}, {"0": 6000})
    assert loads == {"0": Load(100.0, 0.0)}
    loads = meter.update(3660.0, {"0": 6000}, {"0": 6000})
    assert loads is not None
    assert loads["0"].rate == pytest.approx(0.0, abs=1e-9)


def test_partitions_that_are_not_there_are_left_out_and_nothing_is_negative() -> None:
    meter = LoadMeter()
    meter.update(0.0, {"0": 500}, {"0": 500, "9": 3})
    loads = meter.update(20.0, {"0": 10}, {"0": 500, "9": 3})
    assert loads == {"0": Load(0.0, 0.0)}, "the hub was made anew"
    assert meter.update(40.0, {"0": 10}, {}) == {}, "given away"
    assert meter.update(60.0, {"0": 10}, {"0": 10}) == {}, "and come back: begun anew"
