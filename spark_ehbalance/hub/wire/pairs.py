"""Messages of any shape, many at a time: where their sections are, and the pairs of the maps in them.

For each pair that a map has, numpy goes through all maps at once: about 0.1 µs a pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from spark_ehbalance.hub.wire.messages import ANNOTATIONS, APPLICATION, PROPERTIES
from spark_ehbalance.hub.wire.scan import TEXT, Booleans, Integers, Scan, Spans, number, words

#: Pairs of the largest map: a round is made for each, and there is a place for each in every map.
_MOST_PAIRS = 64


class Sections(NamedTuple):
    """Where the sections of messages lie; one that a message lacks has the length 0."""

    annotations: Spans
    properties: Spans
    application: Spans
    bodies: Spans


def find_sections(data: bytearray, starts: Integers, ends: Integers) -> tuple[Booleans, Sections]:
    """Which of the messages are annotations, properties, pairs and one body, each in its place, and where those are.

    `data` has `SLACK` more bytes than the last end.
    """
    scan = Scan(data, starts)
    scan.begin_sections()
    annotations, properties, application = map(scan.section, (ANNOTATIONS, PROPERTIES, APPLICATION))
    sections = Sections(annotations, properties, application, scan.body_to(ends))
    return scan.good & (annotations.lengths > 0), sections


class Pairs(NamedTuple):
    """The pairs of many maps, one map after the other."""

    maps: Integers  # which map each belongs to
    keys: Spans
    codes: Integers  # what the value begins with
    values: Spans  # what it holds

    def of(self, which: Booleans) -> Pairs:
        """Some of them."""
        return Pairs(self.maps[which], self.keys.of(which), self.codes[which], self.values.of(which))

    def of_maps(self, which: Booleans) -> Pairs:
        """Those of some of the maps, which are counted anew."""
        chosen = self.of(which[self.maps])
        return chosen._replace(maps=(np.cumsum(which) - 1)[chosen.maps])


def find_pairs(data: bytearray, maps: Spans) -> tuple[Booleans, Pairs]:
    """Which maps have texts as keys only and values that are neither compound nor described, and the pairs of those.

    A span of length 0 is a map without any. `data` has `SLACK` more bytes than the end of the last one.
    """
    scan = Scan(data, maps.starts)
    rows, here = scan.look(9), maps.lengths > 0
    wide = rows[:, 0] == 0xD1
    counts = np.where(here, np.where(wide, number(rows, 5, 4), rows[:, 2]), 0) // 2
    good = scan.good & (~here | wide | (rows[:, 0] == 0xC1)) & (counts <= _MOST_PAIRS)
    counts[~good] = 0
    pos = maps.starts + np.where(here, np.where(wide, 9, 3), 0)
    most = int(counts.max(initial=0))
    fields = np.empty((5, len(counts), most), np.int64)
    for each in range(most):
        at = np.flatnonzero(counts > each)
        scan = Scan(data, pos[at])
        key_codes, keys = scan.value()
        codes, values = scan.value()
        good[at] &= scan.good & TEXT[key_codes]
        pos[at] = scan.pos
        fields[:, at, each] = (*keys, codes, *values)
    good &= pos == maps.starts + maps.lengths
    found = good[:, np.newaxis] & (np.arange(most) < counts[:, np.newaxis])
    key_starts, key_lengths, codes, starts, lengths = fields[:, found]
    return good, Pairs(np.nonzero(found)[0], Spans(key_starts, key_lengths), codes, Spans(starts, lengths))


def named(
    data: bytearray, pairs: Pairs, maps: int, kinds: Mapping[bytes, Booleans]
) -> tuple[Booleans, dict[bytes, Integers]]:
    """The number of the pair of each name, or -1, by map; and in which maps its value begins with one of its `kinds`.

    Raises ValueError if a map has a name twice.
    """
    size = -(-max(map(len, kinds)) // 8) * 8
    keys, good, found = Scan(data, pairs.keys.starts).look(size).view(np.uint64), np.ones(maps, np.bool_), {}
    for name, kind in kinds.items():
        expected, mask = words(name.ljust(size, b"\0")), words((b"\xff" * len(name)).ljust(size, b"\0"))
        at = np.flatnonzero(pairs.keys.lengths == len(name))
        at = at[~((keys[at] ^ expected) & mask).any(axis=1)]
        found[name] = np.full(maps, -1)
        found[name][pairs.maps[at]] = at
        if np.count_nonzero(found[name] >= 0) != len(at):
            raise ValueError("a key twice")
        good[pairs.maps[at[~kind[pairs.codes[at]]]]] = False
    return good, found
