"""Kinds of requests to a storage, and their faults."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class RequestKind(enum.Enum):
    """The kind of a request."""

    GET = "GET"
    HEAD = "HEAD"
    LIST = "LIST"
    PUT = "PUT"
    CONDITIONAL_PUT = "conditional PUT"
    DELETE = "DELETE"
    BATCH = "BATCH"
    OTHER = "other"


class Request(NamedTuple):
    """A request to a storage. `path` is what it reads or writes, or the prefix that it lists, below the container."""

    kind: RequestKind
    path: str


class Break(enum.Enum):
    """How a connection breaks. The client sees a reset, or in vain waits for an answer."""

    RESET = "reset, and nothing is forwarded"
    RESET_HALFWAY = "reset when half of the request's body is forwarded"
    LOST_ANSWER = "reset when the storage has done the request"
    CUT_ANSWER = "reset when half of the answer is sent"
    HANG = "no answer, and nothing is forwarded"
    HANG_WHEN_DONE = "no answer, but the storage has done the request"


@dataclass(frozen=True)
class Refusal:
    """An answer in place of the storage, which does not get the request."""

    status: int
    code: str
    headers: Mapping[str, str] = field(default_factory=dict)


BUSY = Refusal(503, "ServerBusy", {"Retry-After": "1"})
TOO_MANY = Refusal(429, "TooManyRequests", {"Retry-After": "1"})
EXPIRED = Refusal(403, "AuthenticationFailed")

Fault = Break | Refusal


@dataclass
class Rule:
    """Disturbs the requests of `kind` in whose path the expression `path` is found: not the first `skip`, then `times`
    of them. None means all."""

    fault: Fault
    kind: RequestKind | None = None
    path: str = ""
    skip: int = 0
    times: int | None = None
    matches: int = 0

    def applies(self, request: Request) -> bool:
        """Whether `request` is disturbed. Counts it if it matches."""
        if self.kind not in (None, request.kind) or not re.search(self.path, request.path):
            return False
        number, self.matches = self.matches - self.skip, self.matches + 1
        return number >= 0 and (self.times is None or number < self.times)
