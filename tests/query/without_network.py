"""Lets planners query the emulator without a connection, for tests of how they use its answers: connecting is the
slowest part of starting a query."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.amqp.errors import AmqpError
from spark_ehbalance.emulator.broker import RateLimit
from spark_ehbalance.emulator.management import answer
from spark_ehbalance.emulator.message import Sections
from spark_ehbalance.eventhub import watcher
from spark_ehbalance.eventhub.metadata import HubMetadata, _Opened
from spark_ehbalance.eventhub.poll_schedule import PollSchedule
from spark_ehbalance.eventhub.wire.management import ManagementRequest

_ALLOWED: Any = SimpleNamespace(allow=lambda hub: True)


def answer_without_network(emulator: Emulator, patch: pytest.MonkeyPatch) -> None:
    """Make the planners of this process query `emulator` directly, without rate limits or checks of consumer groups."""

    def request(requests: Sequence[ManagementRequest], *_: object) -> list[dict[bytes, Any]]:
        return [_answer(emulator, {"type": kind, **dict(properties)}) for kind, properties in requests]

    def opened(metadata: HubMetadata) -> _Opened:
        metadata.opened_at = time.monotonic()
        management: Any = SimpleNamespace(request=request)
        return _Opened(management, auth=None, closing=ExitStack(), until=inf)

    patch.setattr(watcher, "HubMetadata", partial(HubMetadata, most_requests=None))
    patch.setattr(watcher, "PollSchedule", partial(PollSchedule, most_requests=1000.0))
    patch.setattr(HubMetadata, "_open", opened)
    patch.setattr(watcher, "check_group", lambda _: None)
    patch.setattr(RateLimit, "check", lambda _: None)


def _answer(emulator: Emulator, question: dict[str, str]) -> dict[bytes, Any]:
    request_sections = Sections([], {"operation": "READ", **question}, None)
    response = answer(request_sections, emulator._broker, _ALLOWED)
    if response.status != 200:
        raise AmqpError(response.condition or "", response.description)
    return {name.encode(): _decoded(value) for name, value in response.value.items()}


def _decoded(value: Any) -> Any:
    """The message as the client decodes it."""
    if isinstance(value, list):
        return [item.encode() for item in value]
    return value.encode() if isinstance(value, str) else value
