"""An identity provider for a storage that knows none: it issues tokens, and each request with a valid one gets a shared
access signature in its place."""

from __future__ import annotations

import json
import re
import time
import uuid

from chaos.storage.http import Head


class Identity:
    """Issues tokens that expire after `seconds`. Whoever has one may do what `signature` allows."""

    def __init__(self, signature: str, seconds: float) -> None:
        self._signature, self._seconds = signature, seconds
        self._expiries: dict[str, float] = {}

    @property
    def issued(self) -> int:
        return len(self._expiries)

    def token(self) -> bytes:
        """The body of an answer with a new token."""
        token = uuid.uuid4().hex
        self._expiries[token] = time.monotonic() + self._seconds
        return json.dumps({"access_token": token, "expires_in": int(self._seconds), "token_type": "Bearer"}).encode()

    def signed(self, head: Head) -> Head | None:
        """The head of a request with a signature in place of a token; None if the token is not valid."""
        bearer = re.search(rb"\r\nauthorization: Bearer (\w+)", head.raw, re.IGNORECASE)
        if bearer is None or self._expiries.get(bearer[1].decode(), 0.0) < time.monotonic():
            return None
        method, target, version = head.first.split(" ")
        first = f"{method} {target}{'&' if '?' in target else '?'}{self._signature} {version}"
        raw = head.raw.replace(bearer[0], b"").replace(head.first.encode(), first.encode(), 1)
        return Head(raw, first, head.headers)
