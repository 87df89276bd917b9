"""Messages from a query's driver to its planner over a local socket."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_ehbalance.query.control_socket import (
    PlannerAddress,
    PlannerControl,
    request,
    send,
    send_until_accepted,
    socket_path,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("folder")


class FakePlanner:
    """Listens under the planner's name, records the messages, and answers with `answer`."""

    def __init__(self, name: str) -> None:
        self.messages: list[dict[str, Any]] = []
        self.answer: bool | dict[str, Any] | BaseException = True
        self.path = socket_path(PlannerAddress(name))
        self.control = PlannerControl(PlannerAddress(name))
        self.control.start(self._handle)

    def _handle(self, message: dict[str, Any]) -> bool | dict[str, Any]:
        self.messages.append(message)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.fixture
def planner() -> Iterator[FakePlanner]:
    made = FakePlanner("ann")
    yield made
    made.control.close()


def send_bytes(planner: FakePlanner, text: bytes) -> bytes:
    """Send `text`, which is not necessarily a valid message; returns the answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sender:
        sender.settimeout(10)
        sender.connect(str(planner.path))
        sender.sendall(text)
        sender.shutdown(socket.SHUT_WR)
        return sender.recv(100)


def test_message_is_received_and_answered(planner: FakePlanner) -> None:
    large = {str(number): "x" * 100 for number in range(2000)}
    for answer in (True, False, large):
        planner.answer = answer
        assert send(PlannerAddress("ann"), {"leave": True}) == answer
    assert planner.messages == [{"leave": True}] * 3
    assert request(PlannerAddress("ann"), {"n": 1}) == large
    with pytest.raises(ConnectionError, match="the query's planner cannot be reached"):
        request(PlannerAddress("bob"), {"n": 1})


def test_finds_out_whether_any_other_planner_answers_yes(planner: FakePlanner) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(socket_path(PlannerAddress("dead"))))
    assert send_until_accepted(PlannerAddress("ann"), {"n": 1}) is False, "there is no other"
    bob = FakePlanner("bob")
    for answer in (True, False, {"an object": "is no yes"}):
        bob.answer = answer
        assert send_until_accepted(PlannerAddress("ann"), {"n": 2}) is (answer is True)
    bob.control.close()
    assert bob.messages == [{"n": 2}] * 3
    assert send_until_accepted(PlannerAddress("eve"), {"n": 3}) is False, "its own planner is not on this machine"
    assert planner.messages == [{"n": 1}] + [{"n": 2}] * 3


@pytest.mark.parametrize("garbage", [b"", b"\xff\xfe", b"{", b"[]", b'"leave"', b"[" * 50_000, b'{"a":' * 50_000])
def test_thread_survives_garbage(planner: FakePlanner, garbage: bytes) -> None:
    planner.answer = TypeError("not what was expected")
    assert send_bytes(planner, garbage) == b""
    planner.answer = True
    assert send(PlannerAddress("ann"), {"n": 1}) is True


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # assertions cover it
@pytest.mark.parametrize("kind", [KeyError, BaseException])
def test_message_that_cannot_be_handled_is_logged_but_not_answered(
    planner: FakePlanner, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    planner.answer = kind("finished")
    assert send(PlannerAddress("ann"), {}) is None
    logged = f"could not handle a control message: {kind.__name__}('finished')"
    wait_until(lambda: logged in caplog.text, "it is logged", 5)
    planner.answer = True
    assert send(PlannerAddress("ann"), {}) is True


def test_folder_is_private_and_the_path_hides_the_planners_name(planner: FakePlanner, folder: Path) -> None:
    assert stat.S_IMODE(planner.path.parent.stat().st_mode) == 0o700
    assert planner.path.parent.parent == folder
    assert "ann" not in planner.path.name


def test_close_removes_the_socket_and_ends_the_thread() -> None:
    before = set(threading.enumerate())
    made = FakePlanner("cat")
    assert made.path.is_socket()
    made.control.close()
    assert not made.path.exists()
    wait_until(lambda: set(threading.enumerate()) <= before, "the thread has ended")
    made.control.close()


def test_late_close_of_an_earlier_process_keeps_the_later_ones_socket() -> None:
    earlier, later = FakePlanner("ann"), FakePlanner("ann")
    earlier.control.close()
    assert send(PlannerAddress("ann"), {"n": 1}) is True
    assert later.messages == [{"n": 1}]
    assert earlier.messages == []
    later.control.close()
    assert not later.path.exists()


@pytest.mark.parametrize("obstacle", ["a file", "a link", "a link to nothing", "another's", "open to its group"])
def test_folder_that_others_can_use_is_rejected_with_a_warning(
    obstacle: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / f"ehbalance-{os.getuid()}"
    if obstacle.startswith("a link"):
        path.symlink_to(folder / "elsewhere")
        if obstacle == "a link":
            (folder / "elsewhere").mkdir(mode=0o700)
    elif obstacle == "a file":
        path.write_text("")
    else:
        path.mkdir(mode=0o700)
        path.chmod(0o710 if obstacle == "open to its group" else 0o700)
        if obstacle == "another's":
            if os.getuid() != 0:
                pytest.skip("only root can give a folder away")
            os.chown(path, 12345, -1)
    made = FakePlanner("ann").control
    assert f"handovers wait for the next trigger: {path} must be a folder" in caplog.text
    assert "remove it" in caplog.text
    assert list(path.iterdir() if path.is_dir() else []) == []
    made.close()


def test_driver_sends_nothing_through_a_folder_that_others_can_use(planner: FakePlanner, folder: Path) -> None:
    planner.path.parent.chmod(0o755)
    assert send(PlannerAddress("ann"), {"leave": True}) is None
    assert planner.messages == []
