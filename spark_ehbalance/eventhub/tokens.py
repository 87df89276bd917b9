"""Caches a credential's tokens. Fetches the next token before the current one expires, or after it was refused.

azure-identity returns a cached token until five minutes before it expires; a callable's credential might not cache
tokens at all.
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

#: Remaining fraction of a token's lifetime at which the next one is fetched. The fetch is early in case the token
#: service does not answer; the range spreads the requests of processes that started together.
_EARLY = (0.4, 0.5)

#: Remaining fraction below which callers wait for the next token. The client itself renews in the last tenth.
_LATE = 0.12

#: Minimum age in seconds at which a token is dropped. When a token expires, many receivers are refused at once, but
#: only the first refusal needs to drop the token.
_JUST_FETCHED = 0.5

#: Time limit of a fetch in seconds, which is longer than azure-identity's retries. It is needed because a callable may
#: never return.
_FETCH_TIMEOUT = 40.0

#: Maximum length of the text of a credential's error: `DefaultAzureCredential` writes a paragraph per credential.
_MAX_ERROR_LENGTH = 400


class TokenUnavailableError(EhBalanceError):
    """No token could be fetched. The message contains no secret."""


class _CachedToken(NamedTuple):
    """A token, the time when it was fetched (seconds since 1970), and the remaining fraction of its lifetime at which
    the next token is due."""

    access: AccessToken
    fetched_at: float
    early: float

    def left(self, now: float) -> float:
        """Remaining fraction of the token's lifetime."""
        return (self.access.expires_on - now) / max(1.0, self.access.expires_on - self.fetched_at)


class TokenCache(TokenCredential):
    """A credential that caches the tokens of another credential: of `first` if given, otherwise of the credential that
    `make` returns. `make` is called on demand, and again after `renew`. Thread-safe.

    Each fetch runs in its own thread, because a callable may never return; meanwhile callers use the current token.
    """

    def __init__(self, make: Callable[[], TokenCredential], first: TokenCredential | None = None) -> None:
        self._make = make
        self._lock = threading.RLock()  # protects all fields below; released during fetches
        self._cached: dict[str, _CachedToken] = {}
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
        if claims or tenant_id:  # requested only after a service refused a token
            settings |= {"claims": claims, "tenant_id": tenant_id, "enable_cae": enable_cae}
            return _result(_start(partial(self._fetch, scopes, **settings)))
        key, now = " ".join(scopes), time.time()
        with self._lock:
            cached = self._cached.get(key)
            left = 0.0 if cached is None else cached.left(now)
            if cached is not None and left >= cached.early:
                return cached.access
            fetch = self._fetches.get(key)
            if fetch is None:
                fetch = self._fetches[key] = _start(partial(self._fetch, scopes))
                fetch.add_done_callback(partial(self._end, key, cached))
        if cached is not None and left >= _LATE:
            return cached.access
        try:
            return _result(fetch)
        except TokenUnavailableError:
            self._end(key, cached, fetch)  # even after a timeout
            if cached is None or cached.left(time.time()) <= 0:
                raise
            return cached.access

    def renew(self) -> None:
        """Drop the tokens after one was refused. A new credential fetches the next token."""
        now = time.time()
        with self._lock:
            for key, cached in list(self._cached.items()):
                if now - cached.fetched_at > _JUST_FETCHED:
                    del self._cached[key]
                    self._credential = None

    # --- the fetching thread ----------------------------------------------------------------------------------------

    def _end(self, key: str, cached: _CachedToken | None, fetch: Future[AccessToken]) -> None:
        """End `fetch` unless it was abandoned. After a failure, a token that has not expired counts as new, to delay
        the next fetch."""
        access = None if cached is None or cached.left(time.time()) <= 0 else cached.access
        if fetch.done() and fetch.exception() is None:
            access = fetch.result()
        early = random.uniform(
            *_EARLY
        )  # a fraction of the remaining time, because a credential may return the same token again
        with self._lock:
            if self._fetches.get(key) is fetch:
                del self._fetches[key]
                if access is not None:
                    self._cached[key] = _CachedToken(access, time.time(), early)

    def _fetch(self, scopes: tuple[str, ...], **settings: Any) -> AccessToken:
        with self._lock:
            credential = self._credential
        try:
            credential = credential or self._make()
            access = credential.get_token(*scopes, **settings)
            access = AccessToken(str(access.token), int(access.expires_on))
        except EhBalanceError:
            raise
        except Exception as error:  # any type, because a credential from a callable is user code
            raise _unavailable(error_text(error)) from None
        with self._lock:
            self._credential = credential
        return access


def _start(fetch: Callable[[], AccessToken]) -> Future[AccessToken]:
    """Call `fetch` in a new thread."""
    future = Future[AccessToken]()

    def run() -> None:
        try:
            future.set_result(fetch())
        except BaseException as error:
            future.set_exception(error)

    try:
        threading.Thread(target=run, name="ehbalance-token", daemon=True).start()
    except RuntimeError as error:  # out of threads, or the process is exiting
        future.set_exception(_unavailable(error_text(error)))
    return future


def _result(future: Future[AccessToken]) -> AccessToken:
    try:
        return future.result(_FETCH_TIMEOUT)
    except concurrent.futures.TimeoutError:
        raise _unavailable(f"the credential did not answer within {_FETCH_TIMEOUT:g} s") from None


def _unavailable(reason: str) -> TokenUnavailableError:
    return TokenUnavailableError("EHB_TOKEN_UNAVAILABLE", reason=reason)


def error_text(error: BaseException) -> str:
    """A credential's error on one line. Contains the error's message only if an Azure package raised it."""
    kind = type(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"{kind.__name__}: no module {redacted(error.name)}"
    if kind.__module__.partition(".")[0] not in ("azure", "msal"):
        return f"{kind.__name__} (text not shown, as it may contain a secret)"
    words = ["…" if may_be_secret(word) else word for word in str(error).split()]
    text = " ".join(words)
    with contextlib.suppress(ValueError):
        text = text[: text.index(" ", _MAX_ERROR_LENGTH)] + " …"
    return f"{kind.__name__}: {text}" if text else kind.__name__
