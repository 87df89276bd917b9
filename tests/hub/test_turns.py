"""Processes of a host that fetch tokens for each other."""

from __future__ import annotations

import multiprocessing
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import PIPE
from typing import Any
from urllib.request import urlopen

import psutil
import pytest
from azure.core.credentials import AccessToken

from spark_ehbalance.hub import credentials
from spark_ehbalance.hub.credentials import Identity
from spark_ehbalance.hub.tokens import Tokens
from spark_ehbalance.hub.turns import Shared, Turns
from tests.hub.callables import Counting
from tests.waiting import wait_until

#: As many as instance metadata refuses.
PROCESSES = 50

#: To start a process anew would take it a second.
FORK = multiprocessing.get_context("fork")


class Service:
    """Counts who asks for a token, and how many do so at once."""

    def __init__(self) -> None:
        self.asked = self.most_at_once = 0
        present, lock, service = [0], threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with lock:
                    service.asked += 1
                    present[0] += 1
                    service.most_at_once = max(service.most_at_once, present[0])
                    body = f"token-{service.asked}".encode()
                threading.Event().wait(0.02)
                with lock:
                    present[0] -= 1
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.request_queue_size = PROCESSES
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Asking:
    """A credential that asks the service each time."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        with urlopen(self._address) as answer:
            return AccessToken(answer.read().decode(), int(time.time() + 3600))


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.stop()


def ask(address: str, folders: tuple[Path | None, Path | None], answers: Any) -> None:
    """A process: it fetches a token, and tells it."""
    tokens = Tokens(lambda: Asking(address), Turns("identity", *folders, patience=300.0))
    answers.put(tokens.get_token("scope").token)


def answers_of(address: str, folders: tuple[Path | None, Path | None]) -> set[str]:
    answers = FORK.Queue()
    processes = [FORK.Process(target=ask, args=(address, folders, answers)) for _ in range(PROCESSES)]
    for each in processes:
        each.start()
    found = {answers.get(timeout=300) for _ in processes}
    for each in processes:
        each.join()
    return found


def test_one_of_fifty_processes_fetches_for_all(service: Service, tmp_path: Path) -> None:
    assert answers_of(service.address, (tmp_path / "memory", None)) == {"token-1"}
    assert service.asked == 1


def test_without_memory_they_fetch_one_after_the_other(service: Service, tmp_path: Path) -> None:
    assert len(answers_of(service.address, (None, tmp_path / "elsewhere"))) == PROCESSES
    assert service.most_at_once == 1
    assert [each.stat().st_size for each in (tmp_path / "elsewhere").iterdir()] == [0]  # no token is on a disk


def test_only_this_user_can_read_what_is_handed_on(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    Tokens(Counting, Turns("identity", folder)).get_token("scope")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "identity" not in file.name
    assert "scope" not in file.name


@pytest.mark.parametrize("spoilt", ["folder for others", "file for others", "link", "no token", "folder is a file"])
def test_what_others_could_have_written_is_neither_used_nor_written(tmp_path: Path, spoilt: str) -> None:
    folder = tmp_path / "memory"
    Tokens(Counting, Turns("identity", folder)).get_token("scope")
    (file,) = folder.iterdir()
    before = file.read_bytes()
    if spoilt == "folder for others":
        folder.chmod(0o755)
    elif spoilt == "file for others":
        file.chmod(0o644)
    elif spoilt == "link":
        (tmp_path / "target").write_bytes(before)
        file.unlink()
        file.symlink_to(tmp_path / "target")
    elif spoilt == "no token":
        before = b"[1"
        file.write_bytes(before)
    else:
        file.unlink()
        folder.rmdir()
        folder.write_text("")
    second = Counting()
    assert Tokens(lambda: second, Turns("identity", folder)).get_token("scope").token == "token-1"
    assert len(second.asked) == 1
    if spoilt == "no token":
        assert b"token-1" in file.read_bytes()
    elif spoilt != "folder is a file":
        assert file.read_bytes() == before


def test_a_token_that_is_half_over_or_refused_is_not_taken(tmp_path: Path) -> None:
    turns, now = Turns("identity", tmp_path / "memory"), time.time()
    for shared, used in (
        (Shared("good", int(now + 900), now - 600), "good"),
        (Shared("old", int(now + 900), now - 2700), "token-1"),
        (Shared("over", int(now - 1), now - 3600), "token-1"),
    ):
        with turns.taken("scope") as turn:
            turn.write(shared)
        assert Tokens(Counting, turns).get_token("scope").token == used
    with turns.taken("scope") as turn:
        turn.write(Shared("refused", int(now + 3600), now - 60))
    mine, others = Tokens(Counting, turns), Tokens(Counting, turns)
    assert mine.get_token("scope").token == others.get_token("scope").token == "refused"
    mine.renew()
    assert mine.get_token("scope").token == "token-1"
    others.renew()
    assert others.get_token("scope").token == "token-1"  # which the first one has handed on


def test_a_process_that_holds_its_turn_for_ever_stops_nobody(tmp_path: Path) -> None:
    turns = Turns("identity", tmp_path / "memory", patience=0.1)
    with turns.taken("scope"):
        assert Tokens(Counting, turns).get_token("scope").token == "token-1"


def test_a_killed_process_gives_its_turn_back(tmp_path: Path) -> None:
    folder = tmp_path / "memory"

    def hold(held: Any) -> None:
        with Turns("identity", folder).taken("scope"):
            held.set()
            threading.Event().wait()

    held = FORK.Event()
    holder = FORK.Process(target=hold, args=(held,))
    holder.start()
    assert held.wait(60)
    credential = Counting()
    asking = threading.Thread(target=Tokens(lambda: credential, Turns("identity", folder, patience=600)).get_token)
    asking.start()
    holder.kill()
    holder.join()
    wait_until(lambda: credential.asked, "it is the other one's turn")
    asking.join()


# --- with whom tokens are shared -----------------------------------------------------------------------------------


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the turns that are made."""
    names: list[str] = []
    monkeypatch.setenv("EHBALANCE_SHARE_TOKENS", "1")
    monkeypatch.setattr(credentials, "host_turns", lambda name: names.append(name) or Turns(name))
    credentials.forget()
    yield names
    credentials.forget()


def turns_of(identity: Identity, named: list[str]) -> str:
    credentials.forget()
    identity.tokens()
    return named.pop()


def test_a_name_is_shared_with_who_has_the_same_environment(named: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    usual = turns_of(Identity("managedIdentity"), named)
    assert turns_of(Identity("managedIdentity"), named) == usual
    monkeypatch.setattr(os, "getppid", lambda: 4711)
    assert turns_of(Identity("managedIdentity"), named) == usual
    assert turns_of(Identity("managedIdentity", "id"), named) != usual
    assert turns_of(Identity("default"), named) != usual
    monkeypatch.setenv("AZURE_CLIENT_ID", "another")
    assert turns_of(Identity("managedIdentity"), named) != usual
    assert "another" not in str(named)


def test_a_callable_is_shared_among_the_workers_of_one_daemon_alone(
    named: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = Identity("tests.hub.callables:plain")
    credentials.forget()
    identity.tokens()
    assert named == [], "a shell or Spark's driver may have started others with another identity"
    daemon = [sys.executable, "-c", "input()", "-m", "pyspark.daemon", "pyspark.worker"]
    with subprocess.Popen(daemon, stdin=PIPE) as one, subprocess.Popen(daemon, stdin=PIPE) as other:
        for each in (one, other):  # its command line is not there in its first moment
            wait_until(lambda each=each: psutil.Process(each.pid).cmdline() == daemon, "the process has begun")
        monkeypatch.setattr(os, "getppid", lambda: one.pid)
        usual = turns_of(identity, named)
        assert turns_of(identity, named) == usual
        monkeypatch.setattr(os, "getppid", lambda: other.pid)
        assert turns_of(identity, named) != usual
        for each in (one, other):
            each.communicate(b"\n")


def test_who_has_logged_in_by_the_azure_cli_shares_with_nobody_else(
    named: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AZURE_CONFIG_DIR", str(tmp_path))
    for credential in ("azureCli", "default"):
        (tmp_path / "azureProfile.json").write_text("alice")
        usual = turns_of(Identity(credential), named)
        assert turns_of(Identity(credential), named) == usual
        (tmp_path / "azureProfile.json").write_text("bob")
        assert turns_of(Identity(credential), named) != usual


def test_a_process_that_is_forked_meanwhile_does_not_keep_the_turn(tmp_path: Path) -> None:
    turns, done = Turns("name", tmp_path, patience=60.0), FORK.Event()
    with turns.taken("scope"):
        child = FORK.Process(target=done.wait)
        child.start()
    try:
        with turns.taken("scope") as turn:
            turn.write(Shared("token", 1, 1.0))
            assert turn.read() is not None, "its turn has come, although the child lives"
    finally:
        done.set()
        child.join()


def test_sharing_can_be_turned_off(named: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EHBALANCE_SHARE_TOKENS", "0")
    credentials.forget()
    Identity("managedIdentity").tokens()
    assert named == []
