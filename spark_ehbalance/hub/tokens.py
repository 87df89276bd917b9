"""The tokens of one credential: kept while they are good, fetched in time, and fetched anew when one was refused.

Credentials differ in what they keep: those of azure-identity hand a token out again until it has five minutes left, one
from a callable may fetch one at every call. All users of a process get their tokens here.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from azure.core.credentials import AccessToken, TokenCredential

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.hub.turns import NO_TURNS, Shared, Turns
from spark_ehbalance.values.secrets import could_be_secret

#: What is left of a token's time, as a part of it, when the next one is fetched: half of it is left for a service that
#: does not answer, and no two processes begin at the same moment.
_EARLY = (0.4, 0.5)

#: When so little of it is left, whoever needs a token waits for the next one. The client renews in the last tenth.
_LATE = 0.12

#: Seconds after which a token that was just fetched may have been refused. Many receivers are refused at once when one
#: token ends, and only the first of them needs a new one.
_JUST_FETCHED = 0.5

#: Refused tokens that are remembered, so that they are not taken from another process or from a cache again.
_REMEMBERED = 16

#: Letters of an error by a credential that are repeated. That of `DefaultAzureCredential` has a paragraph for each
#: credential that it has tried.
_LONGEST_ERROR = 400


class NoTokenError(EhBalanceError):
    """No token could be fetched. The text is one line, without anything that could be a secret."""


class _Held(NamedTuple):
    """A token, since when it is held, what is left of its time when the next one is due, and when it was fetched, maybe
    by another process. Times are in seconds since 1970."""

    access: AccessToken
    since: float
    early: float
    fetched: float

    def left(self, now: float) -> float:
        """Which part of the time for which it is held is left."""
        return (self.access.expires_on - now) / max(1.0, self.access.expires_on - self.since)


class Tokens(TokenCredential):
    """A credential that keeps the tokens of another one: the `first` one, or which `make` makes when a token is needed;
    after `renew` it makes another. For several threads.

    A token is fetched before the one in hand ends, in a thread of its own, so that nobody waits for a service that does
    not answer. With `turns` the processes of a host fetch one after the other, and hand on what they have got.
    """

    def __init__(
        self, make: Callable[[], TokenCredential], turns: Turns = NO_TURNS, first: TokenCredential | None = None
    ) -> None:
        self._make, self._turns = make, turns
        self._lock = threading.Lock()  # for all below, never held while something is fetched
        self._held: dict[str, _Held] = {}
        self._fetching: dict[str, threading.Lock] = {}
        self._refused: deque[str] = deque(maxlen=_REMEMBERED)
        self._credential = first

    def __repr__(self) -> str:
        return "Tokens()"

    def get_token(
        self,
        *scopes: str,
        claims: str | None = None,
        tenant_id: str | None = None,
        enable_cae: bool = False,
        **settings: Any,
    ) -> AccessToken:
        """A token for `scopes`. Raises `NoTokenError`."""
        if claims or tenant_id:  # what a service has asked for once, after it has refused a token
            return self._fetched(scopes, claims=claims, tenant_id=tenant_id, enable_cae=enable_cae, **settings)
        key, now = " ".join(scopes), time.time()
        with self._lock:
            held = self._held.get(key)
            fetching = self._fetching.setdefault(key, threading.Lock())
        if held is None or (left := held.left(now)) < _LATE:
            with fetching:
                with self._lock:
                    other = self._held.get(key)
                # another thread may have fetched one while this one waited
                return other.access if other is not None and other is not held else self._next(key, scopes, held)
        if left < held.early and fetching.acquire(blocking=False):
            self._fetch_beside(key, scopes, held, fetching)
        return held.access

    def renew(self) -> None:
        """To be called when a token was refused: the next one is fetched anew, by a new credential."""
        now = time.time()
        with self._lock:
            for key, held in list(self._held.items()):
                if now - held.fetched > _JUST_FETCHED:
                    self._refused.append(held.access.token)
                    del self._held[key]
                    self._credential = None

    # --- inside ------------------------------------------------------------------------------------------------

    def _fetch_beside(self, key: str, scopes: tuple[str, ...], held: _Held, fetching: threading.Lock) -> None:
        def fetch() -> None:
            try:
                self._next(key, scopes, held)
            finally:
                fetching.release()

        try:
            threading.Thread(target=fetch, name="ehbalance-token", daemon=True).start()
        except RuntimeError:  # out of threads for a while, or the process ends: the one in hand is still good
            fetching.release()

    def _next(self, key: str, scopes: tuple[str, ...], held: _Held | None) -> AccessToken:
        """The token after `held`, which is kept; `held` itself if none can be fetched and it has not ended."""
        try:
            access, fetched = self._by_turns(key, scopes)
        except NoTokenError:
            if held is None or held.left(time.time()) <= 0:
                raise
            access, fetched = held.access, held.fetched
        early = random.uniform(*_EARLY)  # of what is left now: a credential may hand out the same token again
        with self._lock:
            self._held[key] = _Held(access, time.time(), early, fetched)
        return access

    def _by_turns(self, key: str, scopes: tuple[str, ...]) -> tuple[AccessToken, float]:
        """A token, and when it was fetched."""
        with self._turns.taken(key) as turn:
            shared = turn.read()
            if shared is not None and shared.token not in self._refused and _is_young(shared, time.time()):
                return AccessToken(shared.token, shared.expires_on), shared.since
            access = self._fetched(scopes)
            if access.token in self._refused:  # from the credential's cache
                self._credential = None
                access = self._fetched(scopes)
            turn.write(Shared(access.token, access.expires_on, now := time.time()))
            return access, now

    def _fetched(self, scopes: tuple[str, ...], **settings: Any) -> AccessToken:
        with self._lock:
            made = self._credential
        try:
            credential = made or self._make()
            access = credential.get_token(*scopes, **settings)
            access = AccessToken(str(access.token), int(access.expires_on))
        except EhBalanceError:
            raise
        except Exception as error:  # of whatever kind: a callable's credential is anybody's code
            raise NoTokenError(f"no token could be fetched: {one_line(error)}") from None
        with self._lock:
            self._credential = credential
        return access


def one_line(error: BaseException) -> str:
    """An error of somebody else's code in one line, without what could be a secret."""
    words = ["…" if could_be_secret(word) else word for word in str(error).split()]
    text = " ".join(words)
    with contextlib.suppress(ValueError):
        text = text[: text.index(" ", _LONGEST_ERROR)] + " …"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _is_young(shared: Shared, now: float) -> bool:
    """Whether a token that another process has fetched need not be fetched again yet."""
    return shared.expires_on - now > _EARLY[1] * (shared.expires_on - shared.since)
