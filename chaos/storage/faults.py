"""The kinds of requests to a storage account, and the faults that can be injected into them."""

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
    """A request to a storage account. `path`, relative to the container, is the file that it reads or writes, or the
    prefix that it lists."""

    kind: RequestKind
    path: str


class Break(enum.Enum):
    """How a connection breaks. The client receives a reset, or waits for an answer that never arrives."""

    RESET = "reset, and nothing is forwarded"
    RESET_HALFWAY = "reset after half of the request's body is forwarded"
    LOST_ANSWER = "reset after the storage has executed the request"
    CUT_ANSWER = "reset after half of the answer is sent"
    HANG = "no answer, and nothing is forwarded"
    HANG_WHEN_DONE = "no answer, but the storage has executed the request"


@dataclass(frozen=True)
class Refusal:
    """An answer that the proxy sends instead of forwarding the request to the storage."""

    status: int
    code: str
    headers: Mapping[str, str] = field(default_factory=dict)


BUSY = Refusal(503, "ServerBusy", {"Retry-After": "1"})
TOO_MANY = Refusal(429, "TooManyRequests", {"Retry-After": "1"})
EXPIRED = Refusal(403, "AuthenticationFailed")

Fault = Break | Refusal


@dataclass
class Rule:
    """Injects `fault` into requests of `kind` whose path contains a match of the regular expression `path`. Skips the
    first `skip` of these requests, and then disturbs `times` of them. None means all kinds, or all requests."""

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
