"""A keeper's background jobs, which do not delay leases."""

from __future__ import annotations

import logging
import threading

import pytest

from spark_ehbalance.errors import StoreUnavailableError
from spark_ehbalance.query.housekeeping import Housekeeping
from tests.waiting import wait_until


def unavailable(reason: str) -> StoreUnavailableError:
    return StoreUnavailableError("EHB_LEASE_TABLE_UNAVAILABLE", what="The lease table", action="read", reason=reason)


def test_jobs_run_in_order_in_the_background() -> None:
    house, go, done = Housekeeping(), threading.Event(), list[int]()
    house.do(go.wait)
    for number in range(3):
        house.do(lambda number=number: done.append(number))
    house.finish(0.01)
    assert house.busy, "finishing waits no longer than its timeout"
    assert not done
    go.set()
    house.finish(20)
    assert (house.busy, done) == (False, [0, 1, 2])


def test_unavailable_store_is_tolerated_and_other_errors_are_raised() -> None:
    house, done = Housekeeping(), list[int]()

    def fail(error: BaseException) -> None:
        raise error

    house.do(lambda: fail(unavailable("throttled")))
    house.do(lambda: done.append(1))
    wait_until(lambda: done, "the next job is done")
    house.check()
    house.do(lambda: fail(KeyboardInterrupt()))
    house.finish(20)
    with pytest.raises(KeyboardInterrupt):
        house.check()


def test_persisting_problem_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    house = Housekeeping()

    def fail(why: str) -> None:
        if why:
            raise unavailable(why)

    for why in ("throttled", "throttled", "damaged", "", "damaged"):
        house.do(lambda why=why: fail(why))
    house.finish(20)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", str(unavailable("throttled"))),
        ("INFO", str(unavailable("throttled"))),
        ("WARNING", str(unavailable("damaged"))),
        ("WARNING", str(unavailable("damaged"))),
    ]
