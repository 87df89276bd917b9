"""`--positions FILE`: the JSON that `ehbalance positions` prints, and the positions in the hub that it means."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub.metadata import PartitionState
from spark_ehbalance.eventhub.receiver import PartitionAddress
from spark_ehbalance.eventhub.resolve import resolve
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.starting_positions import HUB_KEY, UnresolvedPosition, position_of_json
from spark_ehbalance.query.offsets import HubReference
from spark_ehbalance.query.options import Options
from spark_ehbalance.query.positions import hub_of_json
from spark_ehbalance.settings.secrets import shown

_T = TypeVar("_T")

#: Partitions resolved at a time: each takes a connection, which mostly waits.
_AT_ONCE = 8

PositionFile = Annotated[
    str | None,
    typer.Option("--positions", metavar="FILE", help="What `ehbalance positions` printed; - for standard input."),
]


class GivenPositions:
    """The positions in `--positions FILE`: `named` by partition, `others` for partitions that it does not name."""

    def __init__(self, file: str) -> None:
        """Raises `OptionError`, which names the file, the partition and the value."""
        self.source = f"--positions={file}"
        try:
            text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
            found = json.loads(text)
        except OSError as error:
            raise OptionError(f"{self.source} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._wrong("JSON of positions by partition, as `ehbalance positions` prints it")
        self.hub = self._parsed(HUB_KEY, found.pop(HUB_KEY, None), hub_of_json)
        self.named = {each: self._parsed(each, value, position_of_json) for each, value in found.items()}
        self.others = self.named.pop("*", None)

    def check(self, hub: HubReference, partitions: Sequence[str]) -> None:
        """Raise `OptionError` for positions of another hub than `hub`, and of others than its `partitions`."""
        if self.hub is not None and self.hub.is_another(hub):
            raise OptionError(f"{self.source} has positions of {self.hub}, and this is {hub}, with other events")
        if unknown := [each for each in self.named if each not in partitions]:
            raise self._wrong(f"partition {', '.join(partitions)}", f"it has {shown(unknown[0])}; ")

    def wanted(self, partitions: Sequence[str]) -> dict[str, UnresolvedPosition]:
        """The position of each of `partitions` that has one."""
        found = {each: self.named.get(each, self.others) for each in partitions}
        return {partition: each for partition, each in found.items() if each is not None}

    def _parsed(self, what: str, value: object, parse: Callable[[object], _T]) -> _T:
        try:
            return parse(value)
        except ValueError as allowed:
            raise self._wrong(str(allowed), f"{shown(what)}: {shown(json.dumps(value))}; ") from None

    def _wrong(self, allowed: str, what: str = "") -> OptionError:
        return OptionError(f"{self.source} is wrong: {what}allowed is {allowed}")


def resolved(
    wanted: Mapping[str, UnresolvedPosition],
    options: Options,
    states: Mapping[str, PartitionState],
    epochs: Mapping[str, int],
    source: str,
) -> dict[str, Position]:
    """The `wanted` position in each partition. Raises `OptionError`, which begins with `source`, if the hub does not
    retain it."""

    def position(partition: str) -> Position:
        address, state = PartitionAddress(options.connection, options.consumer_group, partition), states[partition]
        found = resolve(wanted[partition], address, state, options.receiver_timeout, epochs.get(partition, 0))
        if not state.begin <= found.next <= state.end:
            raise OptionError(
                f"{source}: partition {partition} cannot continue at sequence number {found.next}: allowed is "
                f"{state.begin} to {state.end}, which is the next to come"
            )
        return found

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(wanted, pool.map(position, wanted), strict=True))
