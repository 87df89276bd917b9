"""Caches the tokens of one credential; fetches the next one before one expires, or after one was refused.

Credentials differ in what they keep: those of azure-identity hand a token out again until it has five minutes left, one
from a callable may fetch one at every call. All users of a process get their tokens here.
"""

from __future__ import annotations

import contextlib
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

from azure.core.credentials import AccessToken, TokenCredential

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.values.secrets import could_be_secret

#: What is left of a token's time, as a part of it, when the next one is fetched: half of it is left for a service that
#: does not answer, and no two processes begin at the same moment.
_EARLY = (0.4, 0.5)

#: When so little of it is left, whoever needs a token waits for the next one. The client renews in the last tenth.
_LATE = 0.12

#: Seconds after which a token that was just fetched may have been refused. Many receivers are refused at once when one
#: token ends, and only the first of them needs a new one.
_JUST_FETCHED = 0.5

#: Refused tokens that are remembered, so that they are not taken from a credential's cache again.
_REMEMBERED = 16

#: Seconds for a credential to answer: longer than azure-identity tries again. A callable may wait for ever.
_LONGEST_FETCH = 40.0

#: Letters of an error by a credential that are repeated. That of `DefaultAzureCredential` has a paragraph for each
#: credential that it has tried.
_LONGEST_ERROR = 400


_T = TypeVar("_T")


class NoTokenError(EhBalanceError):
    """No token could be fetched. The text is one line, without anything that could be a secret."""


class _Held(NamedTuple):
    """A token, since when it is held in seconds since 1970, and what is left of its time when the next one is due."""

    access: AccessToken
    since: float
    early: float

    def left(self, now: float) -> float:
        """Which part of the time for which it is held is left."""
        return (self.access.expires_on - now) / max(1.0, self.access.expires_on - self.since)


class Tokens(TokenCredential):
    """A credential that keeps the tokens of another one: the `first` one, or which `make` makes when a token is needed;
    after `renew` it makes another. For several threads.

    A token is fetched before the one in hand ends, in a thread of its own, so that nobody waits for a service that does
    not answer.
    """

    def __init__(self, make: Callable[[], TokenCredential], first: TokenCredential | None = None) -> None:
        self._make = make
        self._lock = threading.Lock()  # for all below, never held while something is fetched
        self._held: dict[str, _Held] = {}
        self._fetching: dict[str, threading.Lock] = {}
        self._failures: dict[str, tuple[float, NoTokenError]] = {}  # the last ones, and when
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
                    other, failure = self._held.get(key), self._failures.get(key)
                # another thread may have fetched one while this one waited, or have failed
                if other is not None and other is not held:
                    return other.access
                if failure is not None and failure[0] > now:
                    raise NoTokenError(str(failure[1]))
                return self._next(key, scopes, held)
        if left < held.early and fetching.acquire(blocking=False):
            self._fetch_beside(key, scopes, held, fetching)
        return held.access

    def renew(self) -> None:
        """Drop the tokens, because one was refused; a new credential fetches the next one."""
        now = time.time()
        with self._lock:
            for key, held in list(self._held.items()):
                if now - held.since > _JUST_FETCHED:
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
        """Fetch and cache the token after `held`; `held` itself if that fails and it has not expired."""
        try:
            access = self._fetched(scopes)
            if access.token in self._refused:  # from the credential's cache
                self._credential = None
                access = self._fetched(scopes)
        except NoTokenError as error:
            with self._lock:
                self._failures[key] = time.time(), error
            if held is None or held.left(time.time()) <= 0:
                raise
            access = held.access
        early = random.uniform(*_EARLY)  # of what is left now: a credential may hand out the same token again
        with self._lock:
            self._held[key] = _Held(access, time.time(), early)
        return access

    def _fetched(self, scopes: tuple[str, ...], **settings: Any) -> AccessToken:
        with self._lock:
            made = self._credential

        def fetch() -> tuple[TokenCredential, AccessToken]:
            credential = made or self._make()
            access = credential.get_token(*scopes, **settings)
            return credential, AccessToken(str(access.token), int(access.expires_on))

        try:
            credential, access = _in_time(fetch)
        except EhBalanceError:
            raise
        except Exception as error:  # of whatever kind: a callable's credential is anybody's code
            raise NoTokenError(f"no token could be fetched: {error_text(error)}") from None
        with self._lock:
            self._credential = credential
        return access


def _in_time(fetch: Callable[[], _T]) -> _T:
    """What `fetch` returns or raises; `NoTokenError` after `_LONGEST_FETCH` seconds, while its thread continues."""
    done: queue.SimpleQueue[tuple[_T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put((fetch(), None))
        except BaseException as error:
            done.put((None, error))

    threading.Thread(target=run, name="ehbalance-credential", daemon=True).start()
    try:
        found, error = done.get(timeout=_LONGEST_FETCH)
    except queue.Empty:
        raise NoTokenError(
            f"no token could be fetched: the credential has not answered for {_LONGEST_FETCH:g} s"
        ) from None
    if error is not None:
        raise error
    return cast(_T, found)


def error_text(error: BaseException) -> str:
    """One line for a credential's error; the error's own text only if an Azure package raised it."""
    kind = type(error)
    if kind.__module__.partition(".")[0] not in ("azure", "msal"):
        return f"{kind.__name__}, whose text is not shown, as it may hold a secret"
    words = ["…" if could_be_secret(word) else word for word in str(error).split()]
    text = " ".join(words)
    with contextlib.suppress(ValueError):
        text = text[: text.index(" ", _LONGEST_ERROR)] + " …"
    return f"{kind.__name__}: {text}" if text else kind.__name__
