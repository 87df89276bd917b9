"""Which partition an event with a partition key goes to, as the buffered producers of Azure's SDKs for .NET, Java and
JavaScript decide it. The service has another hash, which is not known: `docs/service-rules.md`.

Source of the hash: Bob Jenkins, lookup3, `hashlittle2`, whose two results are joined by xor and cut to 16 bits. The
buffered producer of azure-eventhub 5.15.1 takes the remainder of a negative hash in Python's way, and so sends keys to
other partitions than the rest.
"""

from __future__ import annotations

import struct

_MASK = 0xFFFFFFFF
_THREE_WORDS = struct.Struct("<III")

#: The rotations of `mix` and `final` in lookup3.
_MIX, _FINAL = (4, 6, 8, 16, 19, 4), (14, 11, 25, 16, 4, 14, 24)


def partition_index(key: str, partitions: int) -> int:
    """Which of so many partitions, in the order of their numbers, has the events with this key."""
    return abs(_hash(key.encode("utf-8", "surrogatepass"))) % partitions


def _hash(data: bytes) -> int:
    """The signed 16-bit hash of a key; 0 for an empty one."""
    if not data:
        return 0
    words = [(0xDEADBEEF + len(data)) & _MASK] * 3
    last = (len(data) - 1) // 12 * 12  # 1 to 12 bytes are left for the last round
    for at in range(0, last, 12):
        words = _mixed(*_added(words, data[at : at + 12]))
    a, b, c = _added(words, data[last:].ljust(12, b"\0"))
    for turn, bits in enumerate(_FINAL):  # each changes c, a or b in turn, by the one before it
        if turn % 3 == 0:
            c = ((c ^ b) - _rotated(b, bits)) & _MASK
        elif turn % 3 == 1:
            a = ((a ^ c) - _rotated(c, bits)) & _MASK
        else:
            b = ((b ^ a) - _rotated(a, bits)) & _MASK
    low: int = (c ^ b) & 0xFFFF
    return low - 0x10000 if low >= 0x8000 else low


def _added(words: list[int], data: bytes) -> list[int]:
    return [(word + part) & _MASK for word, part in zip(words, _THREE_WORDS.unpack(data), strict=True)]


def _mixed(a: int, b: int, c: int) -> list[int]:
    for bits in _MIX:
        a = (a - c) & _MASK ^ _rotated(c, bits)
        a, b, c = b, (c + b) & _MASK, a  # the next one is changed by this one
    return [a, b, c]


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _MASK
