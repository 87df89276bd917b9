"""The lease under which a task reads a range, as recorded in the lease table."""

from __future__ import annotations

from spark_ehbalance.clock import now_ms
from spark_ehbalance.errors import FencedError
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.group.changes import Stall
from spark_ehbalance.group.model import Author, Lease
from spark_ehbalance.lease_table.backends import open_store
from spark_ehbalance.lease_table.contract import LeaseStore, commit_and_record
from spark_ehbalance.query.options import Options
from spark_ehbalance.text import logger

_LOG = logger(__name__)


def is_owned(lease: Lease | None, wanted: OffsetRange, owner: str, *, epochs: bool) -> bool:
    """`RangeLease.is_owned`, decided from the `lease` in the table. `epochs`: whether the store supports epochs."""
    if lease is None or lease.owner not in (owner, None):
        return False
    if lease.still_owned(wanted.epoch, wanted.since_ms):
        return True
    if lease.epoch > wanted.epoch and 0 < lease.owned_since_ms == wanted.since_ms:
        # The newer process runs this batch again; a sink must not mistake a truncated batch for the complete one.
        raise FencedError("EHB_FENCED", host="an unknown host", owner=owner)
    return not epochs


class RangeLease:
    """The lease of `owner` on the partition of the range `wanted`, with the range's epoch."""

    def __init__(self, options: Options, wanted: OffsetRange, owner: str) -> None:
        self._options, self._wanted, self._owner = options, wanted, owner

    def is_owned(self) -> bool:
        """Whether `owner` still owns the lease with the range's epoch, or with the epoch of a later seek. A released
        lease counts as owned as long as its epoch is unchanged, because nobody else has claimed it and its checkpoint
        is still accepted.

        Raises `StoreError` if the table cannot be read; the batch must then fail, because otherwise the rest of the
        range might never be read. Raises `FencedError` if a later process of this query has claimed the lease.
        """
        with self._table() as store:
            lease = store.read().leases.get(self._wanted.partition)
        return is_owned(lease, self._wanted, self._owner, epochs=self._options.capabilities.epochs)

    def record_stall(self) -> bool:
        """Record that the partition has stalled, which releases the lease. Returns whether the table accepted the
        change. Raises `StoreError`."""
        wanted = self._wanted
        stall = Stall(
            by=Author(self._owner, ""),
            at_ms=now_ms(),
            partition=wanted.partition,
            epoch=wanted.epoch,
            since_ms=wanted.since_ms,
        )
        with self._table() as store:
            return bool(commit_and_record(store, store.read(), [stall], _LOG.warning).accepted)

    def _table(self) -> LeaseStore:
        options = self._options
        assert options.lease_table is not None
        return open_store(options.lease_table, options.storage_options, group=options.group)
