"""Storage that throttles, loses responses, resets connections or hangs: no commit is lost or made twice."""

from __future__ import annotations

import time

import pytest

from chaos.storage.faults import BUSY, EXPIRED, TOO_MANY, Break, Fault, Refusal, RequestKind, Rule
from chaos.storage.proxy import StorageProxy
from spark_ehbalance.errors import StoreUnavailableError
from spark_ehbalance.group.changes import Heartbeat
from spark_ehbalance.lease_table.contract import commit
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.azure_storage.tables import PATIENCE, RENEWAL, Table
from tests.lease_table.store_conformance import BOB, committed

RESETS = (Break.RESET, Break.RESET_HALFWAY, Break.LOST_ANSWER, Break.CUT_ANSWER)


def name(fault: Fault) -> str:
    return fault.code if isinstance(fault, Refusal) else fault.name


def renewed(store: DeltaStore) -> bool | None:
    """Read and renew. Returns whether the renewal was accepted, or None if that is unknown."""
    try:
        outcome = commit(store, store.read(), [RENEWAL])
    except StoreUnavailableError:
        return None
    return outcome.accepted == (RENEWAL,)


@pytest.mark.parametrize("fault", [*RESETS, BUSY, TOO_MANY, EXPIRED], ids=name)
def test_fault_at_any_request_of_a_commit_is_harmless(table: Table, proxy: StorageProxy, fault: Fault) -> None:
    """The table has changed, so the read fetches the changes."""
    with table.opened() as store, table.undisturbed() as other:
        assert renewed(store)
        for number in range(100):
            committed(other, Heartbeat(by=BOB, at_ms=number))
            before = table.renewals()
            proxy.disturb(Rule(fault, skip=number, times=1))
            with proxy.count_requests() as requests:
                done = renewed(store)
            proxy.disturb()
            assert done is not False
            assert done or fault is not Break.LOST_ANSWER
            assert table.renewals() - before in ({1} if done else {0, 1})
            if requests.total() <= number:
                assert done
                return
    raise AssertionError("every request was disturbed")


@pytest.mark.parametrize("fault", [Break.HANG, Break.HANG_WHEN_DONE])
@pytest.mark.parametrize("kind", [RequestKind.GET, RequestKind.PUT, RequestKind.CONDITIONAL_PUT])
def test_hanging_request_times_out(table: Table, proxy: StorageProxy, kind: RequestKind, fault: Break) -> None:
    with table.opened() as store:
        before = store.read().leases["0"].renewal
        proxy.disturb(Rule(fault, kind))
        began = time.monotonic()
        done = renewed(store)
        assert time.monotonic() - began < 5 * PATIENCE, "a commit has three requests, and may look for itself"
        proxy.disturb()
        assert table.renewals() - before in ({1} if done else {0, 1})
        assert renewed(store)
