"""Caches the tokens of one credential; fetches the next one before one expires, or after one was refused.

Those of azure-identity hand a token out again until it has five minutes left, one from a callable may keep none.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from azure.core.credentials import AccessToken, TokenCredential

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.settings.secrets import may_be_secret, redacted

#: What is left of a token's time, as a part of it, when the next one is fetched: half of it is left for a service that
#: does not answer, and no two processes begin at the same moment.
_EARLY = (0.4, 0.5)

#: When so little of it is left, whoever needs a token waits for the next one. The client renews in the last tenth.
_LATE = 0.12

#: Seconds after which a token that was just fetched may have been refused. Many receivers are refused at once when one
#: token ends, and only the first of them needs a new one.
_JUST_FETCHED = 0.5

#: Seconds for a credential to answer: longer than azure-identity tries again. A callable may wait for ever.
_LONGEST_FETCH = 40.0

#: Letters of an error by a credential that are repeated. That of `DefaultAzureCredential` has a paragraph for each
#: credential that it has tried.
_LONGEST_ERROR = 400


class TokenUnavailableError(EhBalanceError):
    """No token could be fetched. The text is one line, without anything that could be a secret."""


class _Held(NamedTuple):
    """A token, since when it is held in seconds since 1970, and what is left of its time when the next one is due."""

    access: AccessToken
    since: float
    early: float

    def left(self, now: float) -> float:
        """Which part of the time for which it is held is left."""
        return (self.access.expires_on - now) / max(1.0, self.access.expires_on - self.since)


class TokenCache(TokenCredential):
    """A credential that keeps the tokens of another one: the `first` one, or which `make` makes when a token is needed;
    after `renew` it makes another. For several threads.

    Each fetch has a thread of its own, because nobody waits while the token in hand is good, and a callable may never
    return.
    """

    def __init__(self, make: Callable[[], TokenCredential], first: TokenCredential | None = None) -> None:
        self._make = make
        self._lock = threading.RLock()  # for all below, never held while something is fetched
        self._held: dict[str, _Held] = {}
        self._fetches: dict[str, Future[AccessToken]] = {}
        self._credential = first

    def __repr__(self) -> str:
        return "TokenCache()"

    def get_token(
        self,
        *scopes: str,
        claims: str | None = None,
        tenant_id: str | None = None,
        enable_cae: bool = False,
        **settings: Any,
    ) -> AccessToken:
        """A token for `scopes`. Raises `TokenUnavailableError`."""
        if claims or tenant_id:  # what a service has asked for once, after it has refused a token
            settings |= {"claims": claims, "tenant_id": tenant_id, "enable_cae": enable_cae}
            return _result(_started(partial(self._fetched, scopes, **settings)))
        key, now = " ".join(scopes), time.time()
        with self._lock:
            held = self._held.get(key)
            left = 0.0 if held is None else held.left(now)
            if held is not None and left >= held.early:
                return held.access
            fetch = self._fetches.get(key)
            if fetch is None:
                fetch = self._fetches[key] = _started(partial(self._fetched, scopes))
                fetch.add_done_callback(partial(self._end, key, held))
        if held is not None and left >= _LATE:
            return held.access
        try:
            return _result(fetch)
        except TokenUnavailableError:
            self._end(key, held, fetch)  # also one that has not answered
            if held is None or held.left(time.time()) <= 0:
                raise
            return held.access

    def renew(self) -> None:
        """Drop the tokens, because one was refused; a new credential fetches the next one."""
        now = time.time()
        with self._lock:
            for key, held in list(self._held.items()):
                if now - held.since > _JUST_FETCHED:
                    del self._held[key]
                    self._credential = None

    # --- in a thread of its own ------------------------------------------------------------------------------------

    def _end(self, key: str, held: _Held | None, fetch: Future[AccessToken]) -> None:
        """`fetch` is over. If it has failed, the token in hand counts as new unless it has expired, so that the next
        fetch has time. Nothing changes if it was given up before."""
        access = None if held is None or held.left(time.time()) <= 0 else held.access
        if fetch.done() and fetch.exception() is None:
            access = fetch.result()
        early = random.uniform(*_EARLY)  # of what is left now: a credential may hand out the same token again
        with self._lock:
            if self._fetches.get(key) is fetch:
                del self._fetches[key]
                if access is not None:
                    self._held[key] = _Held(access, time.time(), early)

    def _fetched(self, scopes: tuple[str, ...], **settings: Any) -> AccessToken:
        with self._lock:
            credential = self._credential
        try:
            credential = credential or self._make()
            access = credential.get_token(*scopes, **settings)
            access = AccessToken(str(access.token), int(access.expires_on))
        except EhBalanceError:
            raise
        except Exception as error:  # of whatever kind: a callable's credential is anybody's code
            raise TokenUnavailableError(f"no token could be fetched: {error_text(error)}") from None
        with self._lock:
            self._credential = credential
        return access


def _started(fetch: Callable[[], AccessToken]) -> Future[AccessToken]:
    """The result of `fetch`, which a new thread calls."""
    future = Future[AccessToken]()

    def run() -> None:
        try:
            future.set_result(fetch())
        except BaseException as error:
            future.set_exception(error)

    try:
        threading.Thread(target=run, name="ehbalance-token", daemon=True).start()
    except RuntimeError as error:  # out of threads for a while, or the process ends
        future.set_exception(TokenUnavailableError(f"no token could be fetched: {error_text(error)}"))
    return future


def _result(future: Future[AccessToken]) -> AccessToken:
    try:
        return future.result(_LONGEST_FETCH)
    except concurrent.futures.TimeoutError:
        raise TokenUnavailableError(
            f"no token could be fetched: the credential has not answered for {_LONGEST_FETCH:g} s"
        ) from None


def error_text(error: BaseException) -> str:
    """One line for a credential's error; the error's own text only if an Azure package raised it."""
    kind = type(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"{kind.__name__}: there is no {redacted(error.name)}"
    if kind.__module__.partition(".")[0] not in ("azure", "msal"):
        return f"{kind.__name__}, whose text is not shown, as it may hold a secret"
    words = ["…" if may_be_secret(word) else word for word in str(error).split()]
    text = " ".join(words)
    with contextlib.suppress(ValueError):
        text = text[: text.index(" ", _LONGEST_ERROR)] + " …"
    return f"{kind.__name__}: {text}" if text else kind.__name__
