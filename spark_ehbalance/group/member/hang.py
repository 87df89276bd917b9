"""Releases the partitions of a query that hangs, until its batch ends. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from spark_ehbalance.group.changes import Drain
from spark_ehbalance.group.member.query_state import QueryState
from spark_ehbalance.group.model import Member, MemberState
from spark_ehbalance.text import logger

_LOG = logger(__name__)


@dataclass(frozen=True, slots=True)
class Hang:
    """The state of a hang. `active`: the batch in flight has exceeded `maxStall`. `drained`: this member has set its
    own state to leaving because of the hang."""

    active: bool = False
    drained: bool = False

    @property
    def is_over(self) -> bool:
        """Whether the batch has ended, so that this turn sets the member to active again."""
        return self.drained and not self.active

    def checked(self, query: QueryState, limit: float | None, now: float, owned: Iterable[str]) -> Hang:
        """The state at monotonic time `now`, with maxStall=`limit` seconds. `owned` is for the log."""
        ran = now - query.batch_began
        active = limit is not None and bool(query.in_flight) and ran > limit
        if active and not self.active:
            _LOG.error(
                "The batch exceeds maxStall: releasing all partitions. seconds=%.0f maxStall=%g partitions=%s",
                ran, limit, ",".join(owned),
            )  # fmt: skip
        elif self.active and not active:
            _LOG.warning("The batch that exceeded maxStall has ended: claiming partitions again.")
        return replace(self, active=active)

    def drain(self, row: Member | None, drain: Drain) -> tuple[Hang, list[Drain]]:
        """While the query hangs, apply `drain` to this member's `row`, so that others take its partitions. After the
        hang, undo that drain, but not an operator's."""
        if row is None or not (self.active or self.drained):
            return self, []
        is_active = row.state is MemberState.ACTIVE
        if self.active and is_active:
            return replace(self, drained=True), [drain]
        after = replace(self, drained=self.drained and not is_active)
        return after, [replace(drain, undo=True)] if after.is_over else []
