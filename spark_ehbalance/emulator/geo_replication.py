"""The offsets of a geo-replicated hub: texts of three numbers, of which the first one rises with every promotion.

The real service's have the form `2:-1:-1` (azure-sdk-for-go shows one of an empty partition); what its numbers mean is
not documented. Here they are: the number of the primary region (from 1 on), the position in bytes, and the sequence
number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

from spark_ehbalance.emulator.service_errors import INVALID_OFFSET, service_error

_FORM = re.compile(r"(\d{1,9}):(-1|\d{1,19}):(-1|\d{1,19})")


class LostOffsets(Enum):
    """What happens to a receiver that starts at the offset of an event that was lost in a promotion. Microsoft only
    advises to start there ("from the last committed offset")."""

    RESUME = "resume"  # it starts at the first event after the promotion, as with Kafka's protocol
    REFUSE = "refuse"  # as one with an invalid offset
    NUMBER = "number"  # it starts by the sequence number in the offset


class ReplicatedOffsets:
    """The promotions of one partition."""

    def __init__(self) -> None:
        self._lost_offsets = LostOffsets.RESUME
        self._firsts = [0]  # the sequence number of the first event of each primary region, in order

    def promote(self, next_sequence_number: int, lost_offsets: LostOffsets) -> None:
        """Events from `next_sequence_number` on are those of the next region."""
        self._lost_offsets = lost_offsets
        self._firsts.append(next_sequence_number)

    def text(self, sequence_number: int, position: int) -> str:
        return f"{self._region(sequence_number)}:{position}:{sequence_number}"

    def start(self, offset: str, inclusive: bool, next_number: int, holds: Callable[[int, int], bool]) -> int:
        """The sequence number at which a receiver that asks for `offset` starts; the event may have aged out.

        `next_number` is the log's, `holds` is `PartitionLog.holds`. Raises AmqpError for an invalid offset.
        """
        match = _FORM.fullmatch(offset)
        if match is None:
            raise service_error(INVALID_OFFSET, offset=offset)
        region, position, number = (int(part) for part in match.groups())
        if not 1 <= region <= len(self._firsts):
            raise service_error(INVALID_OFFSET, offset=offset)
        if number < 0:
            return 0
        after = number if inclusive else number + 1
        if self._region(number) == region and holds(number, position):
            return after
        first_new = min(self._firsts[region:], default=number + 1)
        if number < first_new or self._lost_offsets is LostOffsets.REFUSE:
            raise service_error(INVALID_OFFSET, offset=offset)
        return min(after, next_number) if self._lost_offsets is LostOffsets.NUMBER else first_new

    def _region(self, sequence_number: int) -> int:
        """The number of the primary region of an event: the last one that began before it."""
        return max((index for index, first in enumerate(self._firsts, 1) if first <= sequence_number), default=1)
