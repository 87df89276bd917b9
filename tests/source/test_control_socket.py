"""Notices from a query's driver to its planner, over a local socket."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_ehbalance.source.control_socket import _LARGEST, _SENDERS, PlannerControl, _address, send
from tests.waiting import wait_until


class Board:
    """A notice board that keeps what it is told, and answers `answer`."""

    def __init__(self, owner: str) -> None:
        self.notices: list[dict[str, Any]] = []
        self.answer: bool | BaseException = True
        self.path = Path(_address(owner))
        self.board = PlannerControl(owner, self._read)

    def _read(self, notice: dict[str, Any]) -> bool:
        self.notices.append(notice)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.fixture(autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder of this test's own, with a name as short as socket addresses must be."""
    tmp_path_factory.getbasetemp()  # pytest's own must not lie in it
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        yield Path(short)


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board("ann")
    yield made
    made.board.close()


def say(board: Board, text: bytes) -> bytes:
    """Send arbitrary bytes; what comes back."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sender:
        sender.settimeout(10)
        sender.connect(str(board.path))
        sender.sendall(text)
        sender.shutdown(socket.SHUT_WR)
        return sender.recv(100)


@pytest.mark.parametrize("answer", [True, False])
def test_a_notice_arrives_and_is_answered(board: Board, answer: bool) -> None:
    board.answer = answer
    assert send("ann", {"leave": True}) is answer
    assert board.notices == [{"leave": True}]


def test_a_large_notice_arrives_whole(board: Board) -> None:
    notice = {"finished": {"partitions": {str(p): {"epoch": 1, "from": 2**40, "to": 2**41} for p in range(2000)}}}
    assert send("ann", notice) is True
    assert board.notices == [notice]


def test_nobody_there_is_no_answer(board: Board) -> None:
    assert send("bob", {"leave": True}) is None
    board.board.close()
    assert send("ann", {"leave": True}) is None


def test_a_dead_planner_s_socket_is_no_answer_and_in_nobody_s_way(board: Board) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(_address("bob"))
    assert Path(_address("bob")).exists()
    assert send("bob", {}) is None
    later = Board("bob")
    assert send("bob", {}) is True
    later.board.close()


@pytest.mark.parametrize(
    "garbage", [b"", b"\xff\xfe", b"{", b"[]", b"1", b'"leave"', b"null", b"[" * 50_000, b'{"a":' * 50_000]
)
def test_garbage_does_not_end_the_thread(board: Board, garbage: bytes) -> None:
    board.answer = TypeError("not what was expected")
    assert say(board, garbage) == b""
    board.answer = True
    assert send("ann", {"n": 1}) is True


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # which is what must not happen
@pytest.mark.parametrize("kind", [KeyError, BaseException])
def test_a_notice_that_cannot_be_carried_out_is_logged_and_unanswered(
    board: Board, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    board.answer = kind("finished")
    assert send("ann", {}) is None
    wait_until(lambda: f"a notice could not be read: {kind.__name__}('finished')" in caplog.text, "it is logged", 5)
    board.answer = True
    assert send("ann", {}) is True


def test_who_never_stops_talking_is_cut_off(board: Board) -> None:
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        say(board, b" " * 10 * _LARGEST)
    assert send("ann", {"n": 1}) is True


def test_who_says_nothing_holds_up_nobody(board: Board) -> None:
    with contextlib.ExitStack() as mutes:
        for _ in range(_SENDERS - 1):
            mute = mutes.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            mute.connect(str(board.path))
        assert send("ann", {"n": 1}) is True
        # More than all places: for a while.
        mutes.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)).connect(str(board.path))
        wait_until(lambda: send("ann", {"n": 2}), "others are heard", 20)


def test_who_speaks_slowly_is_cut_off(board: Board) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as slow:
        slow.connect(str(board.path))

        def refused() -> bool:
            try:
                slow.sendall(b" ")
            except OSError:
                return True
            return False

        wait_until(refused, "the connection is closed", 20)
    assert send("ann", {"n": 1}) is True


def test_the_folder_is_only_this_user_s_and_the_address_tells_nothing(board: Board, folder: Path) -> None:
    assert stat.S_IMODE(board.path.parent.stat().st_mode) == 0o700
    assert board.path.parent.parent == folder
    assert "ann" not in board.path.name


def test_closing_removes_the_socket_and_ends_the_thread() -> None:
    before = set(threading.enumerate())
    made = Board("cat")
    assert made.path.is_socket()
    made.board.close()
    assert not made.path.exists()
    wait_until(lambda: set(threading.enumerate()) <= before, "the thread has ended", 10)
    made.board.close()


def test_an_earlier_life_that_closes_late_takes_nothing_from_the_later_one() -> None:
    earlier, later = Board("ann"), Board("ann")
    earlier.board.close()
    assert send("ann", {"n": 1}) is True
    assert later.notices == [{"n": 1}]
    assert earlier.notices == []
    later.board.close()
    assert not later.path.exists()


@pytest.mark.parametrize("last_error", ["a name too long", "a file in the way"])
def test_without_a_socket_there_are_just_no_notices(
    last_error: str, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if last_error == "a name too long":
        long = folder / ("x" * 100)
        long.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(long))
    else:
        Path(_address("ann")).parent.write_text("a file")
    with caplog.at_level(logging.WARNING):
        made = Board("ann")
    assert "no notices are taken" in caplog.text
    assert send("ann", {"n": 1}) is None
    made.board.close()


@pytest.mark.parametrize("last_error", ["a link", "a link to nothing", "another's", "open to all", "open to its group"])
def test_a_folder_that_others_can_use_is_refused_with_a_warning(
    last_error: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = folder / f"ehbalance-{os.getuid()}"
    if last_error.startswith("a link"):
        place.symlink_to(folder / "elsewhere")
        if last_error == "a link":
            (folder / "elsewhere").mkdir(mode=0o700)
    else:
        place.mkdir(mode=0o700)
        place.chmod({"open to all": 0o707, "open to its group": 0o710}.get(last_error, 0o700))
        if last_error == "another's":
            if os.getuid() != 0:
                pytest.skip("only root can give a folder away")
            os.chown(place, 12345, -1)
    made = PlannerControl("ann", lambda notice: True)
    assert f"no notices are taken from the query's driver: {place} must be a folder" in caplog.text
    assert "remove it" in caplog.text
    assert list(place.iterdir() if place.exists() else []) == []
    made.close()


def test_a_driver_does_not_talk_to_a_stranger_in_the_folder_s_place(board: Board, folder: Path) -> None:
    board.path.parent.chmod(0o755)
    assert send("ann", {"leave": True}) is None
    assert board.notices == []


def test_systems_without_such_sockets_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    made = PlannerControl("ann", lambda notice: True)
    assert send("ann", json.loads("{}")) is None
    made.close()
