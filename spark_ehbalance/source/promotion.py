"""What a promotion of a geo-replicated hub has lost, in words. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from spark_ehbalance.hub.metadata import PartitionState
from spark_ehbalance.hub.resolve import Unlocated

#: Ends the message of a `DataLossError`.
PROMOTION_HELP = (
    "The event hub is geo-replicated and was promoted to a region that had not got these events. Set "
    "failOnDataLoss=false to go on there, or set another position with `ehbalance seek`; docs/geo-replication.md says "
    "what that means for what was written"
)


@dataclass(frozen=True, slots=True)
class PromotionLoss:
    """What a partition has lost: `what` says it, `goes_on` is the sequence number of the first event to read."""

    partition: str
    what: str
    goes_on: int

    @property
    def warning(self) -> str:
        """For `failOnDataLoss=false`."""
        return f"{self.what}. Going on at {self.goes_on}, because failOnDataLoss=false"


def promotion_loss(partition: str, position: int, located: int | Unlocated, state: PartitionState) -> PromotionLoss:
    """The loss of a partition that was read up to before `position`, where the hub has other events from `located` on.
    `state` is that of after the promotion."""
    if located is Unlocated.NOTHING_YET:
        located = min(state.end, position - 1)
    if isinstance(located, int):
        new = f"there are other events from {located} on" if located < state.end else "nothing came after them yet"
        what = f"events {located} to {position - 1} were read and are gone; {new}"
        return PromotionLoss(partition, f"partition {partition}: {what}", located)
    what = (
        f"events up to {position - 1} were read, and the last ones are gone; Event Hubs does not tell how many, so "
        f"that reading has to begin again at {state.begin}, the first retained event"
    )
    return PromotionLoss(partition, f"partition {partition}: {what}", state.begin)
