"""The lease store that Azure's event processors (`EventProcessorClient` and `EventHubConsumerClient`) share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from spark_ehbalance.errors import ConflictError, FencedError, StoreFormatError, StoreUnavailableError
from spark_ehbalance.group.capabilities import Capabilities
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.model import Lease, Member
from spark_ehbalance.group.position import Position, partition_order
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.blob import layout
from spark_ehbalance.lease_table.blob.container import Blob, Container, LostRaceError
from spark_ehbalance.lease_table.blob.layout import BlobKind
from spark_ehbalance.lease_table.blob.locations import check_storage, parse_location
from spark_ehbalance.lease_table.blob.rows import (
    BlobState,
    Row,
    claims_or_renews,
    epoch_to_write,
    new_row,
    update_row,
)
from spark_ehbalance.lease_table.contract import REQUEST_TIMEOUT, LeaseStore, PartialWriteError
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Maximum number of concurrent requests. At 100 ms per request, a member renews a hundred leases in a second or two.
_MAX_CONCURRENT = 8


class _NoOffsetError(Exception):
    """A checkpoint was not written because its offset is unknown."""


class _Written(NamedTuple):
    """The result of writing a partition: the new row, or the error if nothing was written. After a partial write, it
    has both."""

    row: Row | None
    error: LostRaceError | StoreUnavailableError | _NoOffsetError | None = None


class BlobStore(LeaseStore):
    """A group in the blobs of the Azure SDKs' checkpoint stores, so that processors in any language can be members.
    `layout` describes the blobs; a container may contain several groups.

    Limits of the format:

    - There are no handovers: an owner detects the loss of a partition only afterwards. So **every move reads events
      twice**: the events that the former owner read after its last checkpoint. No event is lost.
    - There are no epochs, so nothing fences a former owner: a late checkpoint of any member may move a position back.
      The owner ignores it and overwrites it with the next commit; if the owner's process dies earlier, more events are
      read twice. All readers have owner level 0, so the last one to connect reads.
    - Several partitions cannot be committed together: a write may succeed for only some of them (`PartialWriteError`).
    - There are no member rows, operator commands or history. Other members are known only from their leases, without
      their loads, limits and lease durations.

    A read is one listing. After a claim from another owner, a second listing follows, because that owner may have
    written a checkpoint meanwhile. A renewal, claim or release is one request, conditional on the ownership blob's
    ETag; a checkpoint is a separate, unconditional request, as in the SDKs. Unchanged blobs are not written.

    `read` raises `FencedError` if a later process claimed a partition under the id of this handle's member.

    A checkpoint is written only with its offset, because processors in Python and JavaScript need it. If `find_offsets`
    finds no offset for a checkpoint or a first claim, the transition is neither accepted nor rejected.
    """

    capabilities = Capabilities(members=False, epochs=False, atomic=False)
    parse_location = staticmethod(parse_location)
    check_storage = staticmethod(check_storage)

    def __init__(
        self,
        location: str,
        options: Mapping[str, str] | None = None,
        patience: float = REQUEST_TIMEOUT,
        group: Group | None = None,
    ) -> None:
        self._location = parse_location(location)
        self._container = Container(self._location, options or {}, patience)
        self._group = group
        self._rows: dict[str, Row] = {}
        self._members: Mapping[str, Member] = MappingProxyType({})
        self._snapshot: Snapshot | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._failed: Set[str] = frozenset()  # partitions whose last write failed
        self._unconfirmed: dict[str, int] = {}  # partition → epoch of the last claim without a response
        self._unfound: Set[str] = frozenset()  # partitions whose last position has no offset

    def __repr__(self) -> str:
        return f"BlobStore({self._location!r})"

    def exists(self) -> bool:
        """Whether the container exists. A group without blobs counts as a group without partitions."""
        return self._container.exists()

    def create(self, group: Group, content: Snapshot | None = None) -> None:
        """Create the container unless it exists, and the blobs of `content` unless the group has any."""
        if self._group not in (None, group):
            raise self._foreign(f"it was opened for the group {self._group}, not for {group}")
        self._group = group
        if not self.exists():
            self._container.create()
        if content is not None and not (base := self.read()).leases:
            self.write(base, content)

    def read(self) -> Snapshot:
        return self._update_rows(self._list_states())

    def write(self, base: Snapshot, new: Snapshot) -> Snapshot:
        if self._snapshot is None:
            self.read()
        if self._snapshot is None or base.version != self._snapshot.version:
            raise ConflictError("EHB_COMMIT_CONFLICT", version=base.version + 1, location=self._location)
        changed = [p for p, lease in new.leases.items() if lease != base.leases.get(p) or self._is_unsaved(lease)]
        leases = self._with_offsets([new.leases[p] for p in changed])
        written = dict(zip(changed, self._in_parallel(leases), strict=True))
        failed = {p: result.error for p, result in written.items() if result.error is not None}
        if failed and not any(result.row for result in written.values()):
            self._raise_if_unavailable(list(failed.values()))
        self._rows |= {partition: result.row for partition, result in written.items() if result.row is not None}
        self._members = new.members
        lost = {p: "another member was faster" for p, error in failed.items() if isinstance(error, LostRaceError)}
        # After a lost race the owner is unknown, and a former owner may have written a checkpoint since the last read.
        after = self.read() if lost or _taken_over(base, self._rows, written) else self._renewed_snapshot()
        unavailable = {p: error for p, error in failed.items() if isinstance(error, StoreUnavailableError)}
        self._warn(unavailable, written.keys() - failed.keys())
        if failed:
            raise PartialWriteError(after, lost, frozenset(failed.keys() - lost.keys()))
        return after

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._container.close()

    # --- reading -----------------------------------------------------------------------------------------------

    def _blobs(self) -> dict[str, Blob]:
        """The blobs of the group, by name."""
        if self._group is None:
            self._group = self._only_group()
        return self._container.list(layout.group_prefix(self._group))

    def _list_states(self) -> dict[str, BlobState]:
        blobs: dict[str, dict[BlobKind, Blob]] = {}
        for name, blob in self._blobs().items():
            assert self._group is not None
            if parsed := layout.parse_name(self._group, name):
                kind, partition = parsed
                blobs.setdefault(partition, {})[kind] = blob
        return {partition: self._found(partition, blob) for partition, blob in blobs.items()}

    def _only_group(self) -> Group:
        found = layout.groups(self._container.list(""))
        if not found:
            raise self._foreign("it contains no group, because no consumer has claimed a partition yet")
        if len(found) > 1:
            shown = ", ".join(sorted(map(str, found))[:5]) + (" and more" if len(found) > 5 else "")
            raise self._foreign(f"it contains several groups: {shown}")
        return found.pop()

    def _found(self, partition: str, blobs: Mapping[BlobKind, Blob]) -> BlobState:
        ownership, blob = blobs.get(BlobKind.OWNERSHIP), blobs.get(BlobKind.CHECKPOINT)
        stored = layout.checkpoint(blob.metadata if blob else None)
        if stored.offset is not None and stored.sequence_number is None:
            assert self._group is not None
            name = layout.blob_name(self._group, BlobKind.CHECKPOINT, partition)
            raise self._foreign(f"the blob {name} has an offset without a sequence number")
        if ownership is None:
            return BlobState(checkpoint=stored.position)
        owner, epoch = layout.owner(ownership.metadata), layout.epoch(ownership.metadata)
        return BlobState(owner, epoch, ownership.etag, ownership.modified_ms, stored.position)

    def _update_rows(self, listed: Mapping[str, BlobState]) -> Snapshot:
        for partition in self._rows.keys() | listed.keys():
            found, row = listed.get(partition, BlobState()), self._rows.get(partition)
            self._check_fence(partition, found, row)
            if row is None:
                self._rows[partition] = new_row(partition, found)
            else:
                self._rows[partition] = update_row(row, found, own=found.owner in self._members)
        return self._renewed_snapshot()

    def _foreign(self, problem: str) -> StoreFormatError:
        return StoreFormatError("EHB_LEASE_TABLE_FOREIGN", location=self._location, problem=problem)

    def _check_fence(self, partition: str, found: BlobState, row: Row | None) -> None:
        """Raise `FencedError` if this member owns the partition in an epoch that this handle did not write."""
        if found.owner not in self._members or found.epoch is None:
            return
        known = row.lease.epoch if row is not None and row.lease.owner == found.owner else -1
        if found.epoch > max(known, self._unconfirmed.get(partition, -1)):
            raise FencedError("EHB_FENCED", host="an unknown host", owner=found.owner)

    def _renewed_snapshot(self) -> Snapshot:
        """The snapshot of the rows; the last snapshot if they have not changed."""
        assert self._group is not None
        partitions = sorted(self._rows, key=partition_order)
        leases = MappingProxyType({partition: self._shown(self._rows[partition].lease) for partition in partitions})
        before = self._snapshot
        if before is None:
            self._snapshot = Snapshot(self._group, 0, leases, self._members)
        elif leases != before.leases or self._members != before.members:
            self._snapshot = replace(before, version=before.version + 1, leases=leases, members=self._members)
        assert self._snapshot is not None
        return self._snapshot

    def _shown(self, lease: Lease) -> Lease:
        """`lease` as shown in the snapshot. If this member owns the lease but the lease has no position, it is shown
        without an owner, so that it is claimed again. In this case, either the response to its claim was lost, its
        position could not be written, or an earlier process ended before its first checkpoint."""
        return replace(lease, owner=None) if lease.checkpoint is None and lease.owner in self._members else lease

    # --- writing -----------------------------------------------------------------------------------------------

    def _is_unsaved(self, lease: Lease) -> bool:
        """Whether the checkpoint of an owned lease is missing from its blob, because it is not written yet or was
        overwritten."""
        row = self._rows.get(lease.partition)
        return row is not None and lease.owner in self._members and _can_be_stored(lease.checkpoint, row)

    def _with_offsets(self, leases: list[Lease]) -> list[Lease]:
        """`leases` with the offsets of their checkpoints, where these are found."""
        positions = {
            lease.partition: lease.checkpoint.sequence_number
            for lease in leases
            if lease.checkpoint is not None and _lacks_offset(lease.checkpoint)
        }
        if not positions:
            return leases
        found = self.find_offsets(positions)
        if missing := sorted(positions.keys() - found.keys() - self._unfound, key=partition_order):
            _LOG.warning("Not writing positions at which the hub has no event. partitions=%s", ", ".join(missing))
        self._unfound = frozenset(positions.keys() - found.keys())
        return [
            replace(x, checkpoint=replace(x.checkpoint, offset=found[x.partition]))
            if x.checkpoint is not None and x.partition in positions and x.partition in found
            else x
            for x in leases
        ]

    def _in_parallel(self, leases: list[Lease]) -> list[_Written]:
        if len(leases) < 2:
            return [self._write(lease) for lease in leases]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_MAX_CONCURRENT, "ehbalance-blobs")
        return list(self._pool.map(self._write, leases))

    def _write(self, wanted: Lease) -> _Written:
        """Write the changes relative to the row. A release follows the checkpoint, because the next owner continues
        from it; a claim or a renewal precedes the checkpoint, because only an owner may write one."""
        row = self._rows.get(wanted.partition)
        written: Row | None = None
        try:
            if row is None and wanted.owner is None:
                return _Written(self._added(wanted))
            row = row or Row(Lease(wanted.partition))
            if row.lease.checkpoint is None and _lacks_offset(wanted.checkpoint):
                raise _NoOffsetError  # a claim must not be written before its position
            if wanted.owner is not None and claims_or_renews(row.lease, wanted):
                row = written = self._with_owner(row, wanted)
            if wanted.checkpoint is not None and _can_be_stored(wanted.checkpoint, row):
                row = written = self._with_checkpoint(row, wanted.checkpoint)
            elif _number(wanted.checkpoint) not in (_number(row.lease.checkpoint), _number(row.stored)):
                raise _NoOffsetError
            if wanted.owner is None and claims_or_renews(row.lease, wanted):
                row = written = self._with_owner(row, wanted)
        except (LostRaceError, StoreUnavailableError, _NoOffsetError) as error:
            return _Written(written, error)
        # The row keeps its renewal counter, because the wanted lease's may count a checkpoint.
        rest = replace(row.lease, load=wanted.load, owned_since_ms=wanted.owned_since_ms)
        return _Written(replace(row, lease=rest))

    def _added(self, wanted: Lease) -> Row:
        """The row of a new partition. Its position does not overwrite an existing checkpoint."""
        row = Row(replace(wanted, epoch=0, renewal=0))
        if wanted.checkpoint is None or not _can_be_stored(wanted.checkpoint, row):
            return row
        return self._with_checkpoint(row, wanted.checkpoint, only_if_none=True)

    def _with_owner(self, row: Row, wanted: Lease) -> Row:
        assert self._group is not None
        name, epoch = layout.blob_name(self._group, BlobKind.OWNERSHIP, wanted.partition), epoch_to_write(row, wanted)
        try:
            blob = self._container.replace(name, layout.ownership_metadata(wanted.owner, epoch), row.etag)
        except StoreUnavailableError:
            self._unconfirmed[wanted.partition] = epoch
            raise
        lease = replace(
            row.lease,
            owner=wanted.owner,
            epoch=epoch,
            renewal=row.lease.renewal + 1,
            renewed_at_ms=blob.modified_ms,
        )
        return replace(row, lease=lease, etag=blob.etag, has_epoch=True)

    def _with_checkpoint(self, row: Row, position: Position, *, only_if_none: bool = False) -> Row:
        assert self._group is not None
        name = layout.blob_name(self._group, BlobKind.CHECKPOINT, row.lease.partition)
        metadata = layout.checkpoint_metadata(position)
        if only_if_none:
            self._container.replace(name, metadata, None)
        else:
            self._container.put(name, metadata)
        stored = layout.checkpoint(metadata).position
        return replace(row, lease=replace(row.lease, checkpoint=stored), stored=stored)

    def _warn(self, failed: Mapping[str, StoreUnavailableError], written: Set[str]) -> None:
        """Warn when writes of partitions begin to fail."""
        new: dict[str, list[str]] = {}
        for partition in sorted(failed.keys() - self._failed, key=partition_order):
            new.setdefault(failed[partition].reason, []).append(partition)
        for reason, partitions in new.items():
            _LOG.warning("Retrying a failed write: %s. partitions=%s", reason, ", ".join(partitions))
        self._failed = (self._failed | failed.keys()) - written

    def _raise_if_unavailable(self, failed: Sequence[Exception]) -> None:
        """Raise the first error if the store is unavailable for all partitions."""
        errors = [error for error in failed if isinstance(error, StoreUnavailableError)]
        if errors and len(errors) == len(failed):
            raise errors[0]


def _taken_over(base: Snapshot, rows: Mapping[str, Row], written: Iterable[str]) -> bool:
    """Whether one of the `written` partitions was taken from another owner."""
    owners = ((base.leases[p].owner, rows[p].lease.owner) for p in written if p in base.leases and p in rows)
    return any(before != now and None not in (before, now) for before, now in owners)


def _number(position: Position | None) -> int | None:
    return None if position is None else position.sequence_number


def _can_be_stored(position: Position | None, row: Row) -> bool:
    """Whether `position` is not in its blob yet, and has an offset, which every SDK needs."""
    return position is not None and position != row.stored and not _lacks_offset(position)


def _lacks_offset(position: Position | None) -> bool:
    """Whether the offset of the position's event is unknown. The position before the first event needs no offset."""
    return position is not None and position.offset is None and position.sequence_number >= 0
