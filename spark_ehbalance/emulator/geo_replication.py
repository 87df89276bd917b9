"""The offsets of a geo-replicated hub: texts of three numbers, of which the first one rises with every promotion.

The real service's have the form `2:-1:-1` (azure-sdk-for-go shows one of an empty partition); what its numbers mean is
not documented. Here they are: how often a region was promoted (from 1 on), the position in bytes, and the sequence
number.
"""

from __future__ import annotations

import json
import re
from enum import Enum
from pathlib import Path
from typing import Protocol

from .amqp.errors import AmqpError
from .service_errors import service_error

INVALID_OFFSET = "com.microsoft:georeplication:invalid-offset"
_FORM = re.compile(r"(\d{1,9}):(-1|\d{1,19}):(-1|\d{1,19})")


class Log(Protocol):
    """What offsets are looked up in; see `PartitionLog`."""

    first_sequence_number: int

    @property
    def next_sequence_number(self) -> int: ...
    def holds(self, sequence_number: int, position: int) -> bool: ...


class LostOffsets(Enum):
    """What becomes of a receiver that starts at the offset of an event that was lost in a promotion. Microsoft only
    advises to start there ("from the last committed offset")."""

    #: It starts at the first event after the promotion, as Kafka's protocol has it.
    RESUME = "resume"
    #: It is refused as one with an invalid offset.
    REFUSE = "refuse"
    #: It starts by the sequence number in the offset.
    NUMBER = "number"


class ReplicatedOffsets:
    """The promotions of one partition. In `directory` they outlive the process."""

    def __init__(self, directory: Path | None) -> None:
        """Raises ValueError for a damaged file."""
        self.lost_offsets = LostOffsets.RESUME
        self._file = None if directory is None else directory / "promotions"
        # the sequence number of the first event of each region that was primary, in order
        self._firsts: list[int] = [0]
        if self._file is not None and self._file.exists():
            self._firsts = [int(first) for first in json.loads(self._file.read_text())]

    def promote(self, next_sequence_number: int) -> None:
        """Events from `next_sequence_number` on are those of the next region. Raises OSError."""
        self._firsts.append(next_sequence_number)
        if self._file is not None:
            self._file.write_text(json.dumps(self._firsts))

    def text(self, sequence_number: int, position: int) -> str:
        """The offset of an event."""
        return f"{self._promotion(sequence_number)}:{position}:{sequence_number}"

    def start(self, offset: str, inclusive: bool, log: Log) -> int:
        """The sequence number at which a receiver that asks for `offset` starts. Raises AmqpError (invalid-offset)."""
        match = _FORM.fullmatch(offset)
        if match is None:
            raise _invalid(offset)
        promotion, position, number = (int(part) for part in match.groups())
        if not 1 <= promotion <= len(self._firsts):
            raise _invalid(offset)
        if number < 0:
            return log.first_sequence_number
        if self._promotion(number) == promotion and log.holds(number, position):
            return max(number if inclusive else number + 1, log.first_sequence_number)
        lost = promotion < len(self._firsts) and number >= min(self._firsts[promotion:])
        if not lost or self.lost_offsets is LostOffsets.REFUSE:
            raise _invalid(offset)
        start = min(self._firsts[promotion:])
        if self.lost_offsets is LostOffsets.NUMBER:
            start = min(number if inclusive else number + 1, log.next_sequence_number)
        return max(start, log.first_sequence_number)

    def _promotion(self, sequence_number: int) -> int:
        """The number of the region in which the event with this number came: the last one that began before it."""
        began = [index for index, first in enumerate(self._firsts) if first <= sequence_number]
        return began[-1] + 1 if began else 1


def _invalid(offset: str) -> AmqpError:
    return service_error(INVALID_OFFSET, f"The supplied offset '{offset[:100]}' is invalid.")
