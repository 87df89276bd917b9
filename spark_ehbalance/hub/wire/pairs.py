"""Messages of any shape, many at a time: where their sections are, and the pairs of the maps in them.

The first pairs of all maps are read at once, then the second ones, and so on: about 0.1 µs a pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from spark_ehbalance.hub.wire.messages import ANNOTATIONS, APPLICATION, PROPERTIES
from spark_ehbalance.hub.wire.scan import TEXT, Booleans, Integers, Scan, Spans, big_endian, words
from spark_ehbalance.hub.wire.transfers import RawMessages

#: Pairs of the largest map: time and memory for all maps are those of the largest one.
_MOST_PAIRS = 64


class Sections(NamedTuple):
    """Where the sections of messages lie. A section that a message lacks has the length 0."""

    annotations: Spans
    properties: Spans
    application: Spans
    bodies: Spans


def find_sections(messages: RawMessages) -> tuple[Booleans, Sections]:
    """Which messages have annotations, and then at most properties, application properties and one body, in this
    order; and where these sections lie."""
    scan = Scan(messages.data, messages.starts)
    scan.begin_sections()
    annotations, properties, application = map(scan.section, (ANNOTATIONS, PROPERTIES, APPLICATION))
    sections = Sections(annotations, properties, application, scan.body_to(messages.ends))
    return scan.good & (annotations.lengths > 0), sections


class Pairs(NamedTuple):
    """The pairs of many maps, one map after the other."""

    maps: Integers  # the index of each pair's map
    keys: Spans
    codes: Integers  # the type code of the value
    values: Spans  # its bytes, without type code and size

    def of(self, which: Booleans) -> Pairs:
        """Some of them."""
        return Pairs(self.maps[which], self.keys.of(which), self.codes[which], self.values.of(which))

    def of_maps(self, which: Booleans) -> Pairs:
        """The pairs of some of the maps. The indices of maps begin at 0 again."""
        chosen = self.of(which[self.maps])
        return chosen._replace(maps=(np.cumsum(which) - 1)[chosen.maps])


def find_pairs(data: bytearray, maps: Spans) -> tuple[Booleans, Pairs]:
    """Which maps have only texts as keys and only values that are neither compound nor described; and their pairs.

    A span of length 0 is an empty map. `data` has `SLACK` more bytes than the end of the last one.
    """
    scan = Scan(data, maps.starts)
    rows, present = scan.look(9), maps.lengths > 0
    wide = rows[:, 0] == 0xD1
    counts = np.where(present, np.where(wide, big_endian(rows, 5, 4), rows[:, 2]), 0) // 2
    good = scan.good & (~present | wide | (rows[:, 0] == 0xC1)) & (counts <= _MOST_PAIRS)
    counts[~good] = 0
    pos = maps.starts + np.where(present, np.where(wide, 9, 3), 0)
    most = int(counts.max(initial=0))
    fields = np.empty((5, len(counts), most), np.int64)
    for index in range(most):
        at = np.flatnonzero(counts > index)
        scan = Scan(data, pos[at])
        key_codes, keys = scan.value()
        codes, values = scan.value()
        good[at] &= scan.good & TEXT[key_codes]
        pos[at] = scan.pos
        fields[:, at, index] = (*keys, codes, *values)
    good &= pos == maps.starts + maps.lengths
    found = good[:, np.newaxis] & (np.arange(most) < counts[:, np.newaxis])
    key_starts, key_lengths, codes, starts, lengths = fields[:, found]
    return good, Pairs(np.nonzero(found)[0], Spans(key_starts, key_lengths), codes, Spans(starts, lengths))


def named(
    data: bytearray, pairs: Pairs, maps: int, codes: Mapping[bytes, Booleans]
) -> tuple[Booleans, dict[bytes, Integers]]:
    """In which of the `maps` each name has a value of one of its type `codes`, if it has one; and for each name the
    index of its pair in each map, or -1.

    Raises ValueError if a map has a name twice.
    """
    size = -(-max(map(len, codes)) // 8) * 8
    keys, good, found = Scan(data, pairs.keys.starts).look(size).view(np.uint64), np.ones(maps, np.bool_), {}
    for name, allowed in codes.items():
        expected, mask = words(name.ljust(size, b"\0")), words((b"\xff" * len(name)).ljust(size, b"\0"))
        at = np.flatnonzero(pairs.keys.lengths == len(name))
        at = at[~((keys[at] ^ expected) & mask).any(axis=1)]
        found[name] = np.full(maps, -1)
        found[name][pairs.maps[at]] = at
        if np.count_nonzero(found[name] >= 0) != len(at):
            raise ValueError("a key twice")
        good[pairs.maps[at[~allowed[pairs.codes[at]]]]] = False
    return good, found
