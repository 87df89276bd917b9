"""Functions that the option `credential` can name; some return a credential, others fail."""

from __future__ import annotations

import itertools
import time
from typing import Any

from azure.core.credentials import AccessToken

#: A secret in the text of errors raised below.
SECRET = "eyJhbGciOiJub25lIn0.eyJleHAiOjE3MDAwMDAwMDB9x"

#: The arguments with which the credentials were created.
MADE: list[dict[str, Any]] = []


class Counting:
    """A credential whose tokens `token-1`, `token-2`, … are valid for `life` seconds; it caches none."""

    def __init__(self, life: float = 3600.0) -> None:
        self.life, self.requests, self._serial = life, list[tuple[str, ...]](), itertools.count(1)

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.requests.append(scopes)
        return AccessToken(f"token-{next(self._serial)}", int(time.time() + self.life))


def plain() -> Counting:
    """Accepts no arguments."""
    MADE.append({})
    return Counting()


def with_ids(client_id: str | None = None, tenant_id: str | None = None) -> Counting:
    """Accepts both ids."""
    MADE.append({"client_id": client_id, "tenant_id": tenant_id})
    return Counting()


def with_all(**ids: str) -> Counting:
    """Accepts any arguments."""
    MADE.append(ids)
    return Counting()


class Holder:
    """Contains a function that returns a credential."""

    inner = staticmethod(plain)


def returns_a_token() -> str:
    """Returns a token instead of a credential."""
    return SECRET


def raises() -> Counting:
    """Raises an error whose multiline text contains a token."""
    raise RuntimeError(f"the vault refused access\nto {SECRET}\nat once")


class WithoutATokenYet:
    """Raises an error when its method is looked up."""

    @property
    def get_token(self) -> Any:
        raise RuntimeError("the vault does not know correct-horse")


def without_a_token_yet() -> WithoutATokenYet:
    """Returns an unusable credential."""
    return WithoutATokenYet()


class Failing:
    """A credential that cannot get a token."""

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        raise RuntimeError(f"no token for you\n{SECRET} is over")


def failing() -> Failing:
    """Returns a credential that fails when a token is requested."""
    return Failing()


class Asynchronous:
    """Like a credential from azure.identity.aio."""

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        return AccessToken("token", int(time.time()))


NOT_CALLABLE = 7
