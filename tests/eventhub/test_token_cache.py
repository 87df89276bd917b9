"""How long a process caches a token, and when it fetches the next one."""

from __future__ import annotations

import re
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError

from spark_ehbalance.eventhub import tokens as tokens_module
from spark_ehbalance.eventhub.tokens import TokenCache, TokenUnavailableError
from tests.eventhub.callables import Counting
from tests.raising import raises
from tests.waiting import wait_until

#: A lifetime that no test reaches, even on a slow machine.
LONG = 3600.0


class Stepped(Counting):
    """A credential whose tokens are valid for `life` seconds, which tests change between calls; can fail or wait for
    `released`."""

    def __init__(self, life: float) -> None:
        super().__init__(life)
        self.fails = False
        self.released = threading.Event()
        self.released.set()

    def get_token(self, *scopes: str, **settings: Any) -> AccessToken:
        token = super().get_token(*scopes)
        self.released.wait(60)
        if self.fails:
            raise RuntimeError("busy")
        return token


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The current time for tokens, in its only element."""
    now = [time.time()]
    monkeypatch.setattr("spark_ehbalance.eventhub.tokens.time.time", lambda: now[0])
    return now


def test_tokens_are_cached_per_scope() -> None:
    credential = Counting()
    tokens = TokenCache(lambda: credential)
    assert [tokens.get_token(scope).token for scope in ("a", "b", "a", "b")] == ["token-1", "token-2"] * 2
    assert credential.requests == [("a",), ("b",)]
    assert "token-1" not in repr(tokens)


def test_many_threads_fetch_one_token() -> None:
    credential = Stepped(LONG)
    credential.released.clear()
    tokens = TokenCache(lambda: credential)
    with ThreadPoolExecutor(20) as pool:
        futures = [pool.submit(tokens.get_token, "a") for _ in range(20)]
        wait_until(lambda: credential.requests, "one of them fetches")
        credential.released.set()
        assert {future.result(60).token for future in futures} == {"token-1"}
    assert len(credential.requests) == 1


def test_next_token_is_fetched_in_the_background_at_half_time(clock: list[float]) -> None:
    credential = Stepped(LONG)
    tokens = TokenCache(lambda: credential)
    first = tokens.get_token("a")
    clock[0] += 0.45 * LONG
    assert tokens.get_token("a") == first
    assert len(credential.requests) == 1
    credential.released.clear()
    clock[0] += 0.2 * LONG
    assert tokens.get_token("a") == first  # immediately, although the credential does not answer
    wait_until(lambda: len(credential.requests) == 2, "the next one is fetched")
    assert tokens.get_token("a") == first
    credential.released.set()
    wait_until(lambda: tokens.get_token("a").token == "token-2", "it is used")
    assert len(credential.requests) == 2


def test_unexpired_token_is_used_until_the_next_one(clock: list[float]) -> None:
    credential = Stepped(LONG)
    tokens = TokenCache(lambda: credential)
    tokens.get_token("a")
    credential.fails = True
    clock[0] += 0.95 * LONG
    for _ in range(3):
        assert tokens.get_token("a").token == "token-1"
    assert len(credential.requests) == 2, "the next attempt waits"
    clock[0] += 0.06 * LONG
    with raises(TokenUnavailableError, "EHB_TOKEN_UNAVAILABLE", reason=re.compile(r"^RuntimeError \(text not shown")):
        tokens.get_token("a")
    credential.fails = False
    assert tokens.get_token("a").token.startswith("token-")


def test_rejected_token_and_its_credential_are_dropped(clock: list[float]) -> None:
    made: list[Counting] = []

    def make() -> Counting:
        made.append(Counting())
        return made[-1]

    tokens = TokenCache(make)
    tokens.get_token("a")
    clock[0] += 1.0
    tokens.renew()
    tokens.get_token("a")
    assert len(made) >= 2
    count = len(made)
    tokens.renew()  # from another receiver whose first token was rejected
    tokens.get_token("a")
    assert len(made) == count


def test_tokens_with_claims_are_not_cached() -> None:
    credential = Counting()
    tokens = TokenCache(lambda: credential)
    assert tokens.get_token("a", claims="more").token == "token-1"
    assert tokens.get_token("a").token == "token-2"


def test_unresponsive_credential_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_module, "_FETCH_TIMEOUT", 0.2)
    credential = Stepped(LONG)
    credential.released.clear()
    tokens = TokenCache(lambda: credential)
    try:
        with raises(TokenUnavailableError, "EHB_TOKEN_UNAVAILABLE", reason=re.compile(r"not answer within 0\.2 s")):
            tokens.get_token("scope")
    finally:
        credential.released.set()
    monkeypatch.undo()
    assert tokens.get_token("scope").token == "token-2", "it is fetched again"


AZURE = ClientAuthenticationError(
    "DefaultAzureCredential failed:\nAADSTS7000215, SharedAccessKey=correct-horse " + "x " * 300
)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (AZURE, r"ClientAuthenticationError: DefaultAzureCredential failed: AADSTS7000215, … (x ){100,200}…"),
        (RuntimeError("correct-horse"), r"RuntimeError \(text not shown, as it may contain a secret\)"),
    ],
)
def test_credentials_error_is_a_short_line_without_secrets(error: Exception, text: str) -> None:
    def fails() -> Counting:
        raise error

    with raises(TokenUnavailableError, "EHB_TOKEN_UNAVAILABLE", reason=re.compile(f"^{text}$")) as caught:
        TokenCache(fails).get_token("a")
    assert "correct-horse" not in "".join(traceback.format_exception(caught.value))


def test_process_without_threads_uses_its_token(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    credential = Counting(LONG)
    tokens = TokenCache(lambda: credential)
    first = tokens.get_token("a")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for part in (0.7, 0.25):
            clock[0] += part * LONG
            assert tokens.get_token("a") == first
        clock[0] += 0.06 * LONG
        with pytest.raises(TokenUnavailableError):
            tokens.get_token("a")
    assert tokens.get_token("a").token == "token-2"
