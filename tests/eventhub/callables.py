"""What users name in the option `credential`: functions that return a credential, and some that do not."""

from __future__ import annotations

import itertools
import time
from typing import Any

from azure.core.credentials import AccessToken

#: In the errors that are raised below.
SECRET = "eyJhbGciOiJub25lIn0.eyJleHAiOjE3MDAwMDAwMDB9x"

#: What the credentials were made with.
MADE: list[dict[str, Any]] = []


class Counting:
    """A credential whose tokens are `token-1`, `token-2` and so on, and live for `life` seconds. It keeps none."""

    def __init__(self, life: float = 3600.0) -> None:
        self.life, self.requests, self._serial = life, list[tuple[str, ...]](), itertools.count(1)

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.requests.append(scopes)
        return AccessToken(f"token-{next(self._serial)}", int(time.time() + self.life))


def plain() -> Counting:
    """Takes nothing."""
    MADE.append({})
    return Counting()


def with_ids(client_id: str | None = None, tenant_id: str | None = None) -> Counting:
    """Takes both ids."""
    MADE.append({"client_id": client_id, "tenant_id": tenant_id})
    return Counting()


def with_all(**ids: str) -> Counting:
    """Takes whatever there is."""
    MADE.append(ids)
    return Counting()


class Holder:
    """Has one in it."""

    inner = staticmethod(plain)


def returns_a_token() -> str:
    """No credential."""
    return SECRET


def raises() -> Counting:
    """Fails, with a token in its text of several lines."""
    raise RuntimeError(f"the vault refused access\nto {SECRET}\nat once")


class WithoutATokenYet:
    """Fails where its method is looked up."""

    @property
    def get_token(self) -> Any:
        raise RuntimeError("the vault does not know correct-horse")


def without_a_token_yet() -> WithoutATokenYet:
    """Returns no credential that could be used."""
    return WithoutATokenYet()


class Failing:
    """A credential that has no token."""

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        raise RuntimeError(f"no token for you\n{SECRET} is over")


def failing() -> Failing:
    """Returns a credential that fails later."""
    return Failing()


class Asynchronous:
    """One of azure.identity.aio, as it were."""

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        return AccessToken("token", int(time.time()))


NOT_CALLABLE = 7
