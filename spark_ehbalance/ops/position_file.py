"""`--positions FILE`: JSON as printed by `ehbalance positions`, and its resolution against the hub."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from spark_ehbalance.errors import HubUnavailableError, OptionError
from spark_ehbalance.eventhub.metadata import PartitionState
from spark_ehbalance.eventhub.receiver import OffsetNotFoundError, PartitionAddress
from spark_ehbalance.eventhub.resolve import resolve
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.starting_positions import (
    HUB_KEY,
    AmbiguousPositionError,
    UnresolvedPosition,
    load_json,
    position_from_json,
)
from spark_ehbalance.query.offsets import HubReference
from spark_ehbalance.query.options import Options
from spark_ehbalance.query.positions import parse_hub
from spark_ehbalance.settings.secrets import redacted

_T = TypeVar("_T")

#: Maximum number of partitions that are resolved concurrently, because each needs its own connection.
_CONCURRENCY = 8

PositionFileOption = Annotated[
    str | None,
    typer.Option("--positions", metavar="FILE", help="`ehbalance positions` output, or - (stdin)."),
]


class PositionFile:
    """Positions in `--positions FILE`: `named` by partition, `others` for the remaining partitions."""

    def __init__(self, file: str) -> None:
        """Raises `OptionError`."""
        self._source = f"--positions={file}"
        try:
            text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
            content = load_json(text)
        except OSError as error:
            raise self._invalid(f"it cannot be read ({error.strerror})", "a readable file") from None
        except AmbiguousPositionError as allowed:
            raise self._invalid("it is ambiguous", str(allowed)) from None
        except (ValueError, RecursionError) as error:
            raise self._invalid(f"it is not JSON ({error})", "JSON as printed by `ehbalance positions`") from None
        if not isinstance(content, dict):
            raise self._invalid("it contains no positions", "JSON as printed by `ehbalance positions`")
        self.hub = self._parse(HUB_KEY, content.pop(HUB_KEY, None), parse_hub)
        self.named = {
            partition: self._parse(partition, value, position_from_json) for partition, value in content.items()
        }
        self.others = self.named.pop("*", None)

    def check(self, hub: HubReference, partitions: Sequence[str]) -> None:
        """Raise `OptionError` if the positions belong to another hub, or to a partition that is not in `partitions`."""
        if self.hub is not None and self.hub.differs_from(hub):
            raise self._invalid(f"it contains positions of {self.hub}", f"positions of {hub}")
        if unknown := [partition for partition in self.named if partition not in partitions]:
            raise self._invalid(f"it contains partition {redacted(unknown[0])}", f"partition {', '.join(partitions)}")

    def targets(self, partitions: Sequence[str]) -> dict[str, UnresolvedPosition]:
        """Positions of those `partitions` that have one."""
        positions = {partition: self.named.get(partition, self.others) for partition in partitions}
        return {partition: position for partition, position in positions.items() if position is not None}

    def _parse(self, key: str, value: object, parse: Callable[[object], _T]) -> _T:
        try:
            return parse(value)
        except ValueError as allowed:
            raise self._invalid(f"{redacted(key)}: {redacted(json.dumps(value))} is invalid", str(allowed)) from None

    def _invalid(self, problem: str, allowed: str) -> OptionError:
        return OptionError("EHB_FILE_INVALID", file=self._source, problem=problem, allowed=allowed)


def resolve_targets(
    targets: Mapping[str, UnresolvedPosition],
    options: Options,
    states: Mapping[str, PartitionState],
    epochs: Mapping[str, int],
) -> dict[str, Position]:
    """The positions of the `targets` in the hub. Raises `OptionError` for a position whose event the hub no longer
    retains."""

    def resolve_one(partition: str) -> Position:
        address, state = PartitionAddress(options.connection, options.consumer_group, partition), states[partition]
        try:
            position = resolve(targets[partition], address, state, options.receiver_timeout, epochs.get(partition, 0))
        except HubUnavailableError as error:
            if not isinstance(error.__cause__, OffsetNotFoundError):
                raise
            problem, allowed = f"the hub rejected its offset ({error.__cause__})", "next, earliest, latest or a time"
            raise OptionError("EHB_POSITION_INVALID", partition=partition, problem=problem, allowed=allowed) from None
        if not state.begin <= position.next <= state.end:
            raise OptionError(
                "EHB_POSITION_INVALID",
                partition=partition,
                problem=f"the hub does not retain sequence number {position.next}",
                allowed=f"{state.begin} to {state.end} (the next event)",
            )
        return position

    with ThreadPoolExecutor(_CONCURRENCY) as pool:
        return dict(zip(targets, pool.map(resolve_one, targets), strict=True))
