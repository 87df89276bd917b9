"""Chooses the partition for a partition key.

The service's function is not documented. This one is Microsoft's `DeterminePartitionId` (Metering.RuntimeCS). It gives
the observed partition for all keys tried in a real namespace, and the service's errors name the last logical partition
of the same ranges. The buffered producers in Azure's SDKs use another function.
"""

from __future__ import annotations

import functools
import struct

#: Number of logical partitions. Each partition of a hub gets a range of them.
_LOGICAL = 32767

_MASK = 0xFFFFFFFF
_THREE_WORDS = struct.Struct("<III")

#: The rotations of `mix` and `final` in lookup3.
_MIX, _FINAL = (4, 6, 8, 16, 19, 4), (14, 11, 25, 16, 4, 14, 24)


@functools.lru_cache(1024)
def partition_for_key(key: str, partitions: int) -> int:
    """The index of the partition, in a hub with this number of `partitions`, for events with this key. Keys are
    case-insensitive."""
    logical = _hash(key.upper().encode("ascii", "replace")) % _LOGICAL
    width, wide_count = divmod(_LOGICAL, partitions)  # the first ranges are wider by one
    narrow = wide_count * (width + 1)
    return logical // (width + 1) if logical < narrow else wide_count + (logical - narrow) // width


def _hash(data: bytes) -> int:
    """Bob Jenkins's lookup3, `hashlittle2`, with both results combined by xor; 0 for an empty key."""
    if not data:
        return 0
    words = [(0xDEADBEEF + len(data)) & _MASK] * 3
    last = (len(data) - 1) // 12 * 12  # the last round has 1 to 12 bytes
    for at in range(0, last, 12):
        words = _mix(*_add(words, data[at : at + 12]))
    a, b, c = _add(words, data[last:].ljust(12, b"\0"))
    for turn, bits in enumerate(_FINAL):  # changes c, a and b in turn, each by means of the previous word
        if turn % 3 == 0:
            c = ((c ^ b) - _rotate(b, bits)) & _MASK
        elif turn % 3 == 1:
            a = ((a ^ c) - _rotate(c, bits)) & _MASK
        else:
            b = ((b ^ a) - _rotate(a, bits)) & _MASK
    return c ^ b


def _add(words: list[int], data: bytes) -> list[int]:
    return [(word + part) & _MASK for word, part in zip(words, _THREE_WORDS.unpack(data), strict=True)]


def _mix(a: int, b: int, c: int) -> list[int]:
    for bits in _MIX:
        a = (a - c) & _MASK ^ _rotate(c, bits)
        a, b, c = b, (c + b) & _MASK, a  # the new word takes part in the next step
    return [a, b, c]


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _MASK
