"""Whether a query's checkpoint, its lease table and its event hub belong together. Does no I/O.

People copy, restore and move each without the others. Names are not evidence: copies share them.
"""

from __future__ import annotations

from spark_ehbalance.errors import DataLossError
from spark_ehbalance.group.member.membership import stale_checkpoint
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.query.offsets import HubReference, StreamOffset, group_name
from spark_ehbalance.text import format_time


def mismatch(
    known: StreamOffset, found: Snapshot | None, hub: HubReference, location: str | None
) -> DataLossError | None:
    """The error to raise if the query must not continue from its checkpoint, which ends with `known`; otherwise None.

    `found` is the lease table at `location`; None if there is none. `hub` is the event hub that was found.
    """
    return (
        changed_hub("checkpoint", known.hub, hub)
        or (found and hub_mismatch(found, hub))
        or (None if known.is_initial else _changed_table(known, found, location))
    )


def changed_hub(part: str, known: HubReference | None, found: HubReference) -> DataLossError | None:
    """The error to raise if `part` contains positions of a hub (`known`) other than `found`; otherwise None."""
    if known is None or not known.differs_from(found):
        return None
    return DataLossError("EHB_HUB_RECREATED", part=part, known=known, found=found)


def hub_mismatch(found: Snapshot, hub: HubReference) -> DataLossError | None:
    """The error to raise if the lease table contains positions of an earlier hub with the same name; otherwise None."""
    known = HubReference(hub.name, hub.namespace, found.table.hub_created_ms if found.table else None)
    return changed_hub("lease table", known, hub)


def _changed_table(known: StreamOffset, found: Snapshot | None, location: str | None) -> DataLossError | None:
    if known.group != group_name(location):
        read_with = known.table.location if known.table else "another" if known.group else None
        return DataLossError("EHB_LEASE_TABLE_CHANGED", known=_named(read_with), found=_named(location))
    if location is None:
        return None
    id = known.table.id if known.table else None
    if found is None or not found.leases:
        return DataLossError("EHB_LEASE_TABLE_LOST", location=location, id=id)
    found_id = found.table.id if found.table else None
    if id != found_id:
        return DataLossError("EHB_LEASE_TABLE_REPLACED", known=id, found=found_id)
    return _stale_lease(known, found) or (_changed_run(known, found) if found_id else None)


def _stale_lease(known: StreamOffset, found: Snapshot) -> DataLossError | None:
    epochs = {p: position.epoch for p, position in known.other_positions.items()}
    epochs |= {p: range_.epoch for p, range_ in known.ranges.items()}
    for partition, epoch in epochs.items():
        lease = found.leases.get(partition)
        if lease is None or lease.checkpoint is None:
            return _stale(f"position in partition {partition}", "known", "missing")
        if lease.epoch < epoch:
            return _stale(f"epoch of partition {partition}", epoch, lease.epoch)
        if lease.epoch > epoch or epoch == 0:
            continue
        # Each change of owner and each seek raises the epoch. Only a rolled-back table can reach the same epoch again.
        if lease.owner not in (None, known.owner):
            return _stale(f"owner of partition {partition} in epoch {epoch}", known.owner, lease.owner)
        tenure = known.ranges[partition].since_ms if partition in known.ranges else 0
        if tenure not in (0, lease.owned_since_ms):
            began, found_began = format_time(tenure), format_time(lease.owned_since_ms)
            return _stale(f"start of ownership of partition {partition} in epoch {epoch}", began, found_began)
    return None


def _changed_run(known: StreamOffset, found: Snapshot) -> DataLossError | None:
    record = found.queries.get(known.lineage)
    if record is None or record.begun < known.table_begun:
        return _stale("last batch of this query", known.table_begun, record.begun if record else "missing")
    return None if record.is_continued_by(known.batch, known.run) else stale_checkpoint(known.batch, record)


def _stale(what: str, known: object, found: object) -> DataLossError:
    return DataLossError("EHB_LEASE_TABLE_STALE", what=what, known=known, found=found)


def _named(location: str | None) -> str:
    return f"lease table {location}" if location else "no lease table"
