"""A query that hangs: what it owns is given back until its batch ends. Pure."""

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
    """Whether the batch in flight runs for longer than `maxStall`. `drained`: because of that, this member itself has
    set its state to leaving."""

    active: bool = False
    drained: bool = False

    @property
    def is_over(self) -> bool:
        """Whether the batch has ended, and this turn undoes what was set because of it."""
        return self.drained and not self.active

    def checked(self, query: QueryState, limit: float | None, now: float, owned: Iterable[str]) -> Hang:
        """As of monotonic time `now`, with maxStall=`limit` seconds. `owned` is for the log."""
        ran = now - query.batch_began
        active = limit is not None and bool(query.in_flight) and ran > limit
        if active and not self.active:
            _LOG.error(
                "the batch has run for %.0f s, longer than maxStall=%g s: giving back partitions %s. The query goes on "
                "owning nothing until the batch ends",
                ran, limit, ", ".join(owned),
            )  # fmt: skip
        elif self.active and not active:
            _LOG.warning("the batch that took too long has ended: taking part again")
        return replace(self, active=active)

    def drain(self, row: Member | None, drain: Drain) -> tuple[Hang, list[Drain]]:
        """Let the others take what is given back, as long as the query hangs: `drain` this member, whose row is given,
        or undo that. What an operator has ordered is not undone."""
        if row is None or not (self.active or self.drained):
            return self, []
        is_active = row.state is MemberState.ACTIVE
        if self.active and is_active:
            return replace(self, drained=True), [drain]
        after = replace(self, drained=self.drained and not is_active)
        return after, [replace(drain, undo=True)] if after.is_over else []
