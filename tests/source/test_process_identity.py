"""Whether a process lives, as far as this machine can tell."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spark_ehbalance.source.processes import is_alive, process_identity

_TELL = "from spark_ehbalance.source.processes import process_identity; print(process_identity(), flush=True); input()"


def test_this_process_lives() -> None:
    assert is_alive(process_identity()) is True
    assert process_identity() == process_identity()


def test_a_process_that_was_killed_is_dead_even_as_a_zombie() -> None:
    command = [sys.executable, "-c", _TELL]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = process.stdout.readline().strip()
        assert is_alive(told) is True
        assert told != process_identity()
        process.kill()
        process.stdout.read()  # its end
        assert is_alive(told) is False or process.poll() is None
    assert is_alive(told) is False


@pytest.mark.parametrize("other", ["", "x", "other-boot:1:2", "other-boot:7:1:2", "a:b:c:d"])
def test_of_another_machine_nothing_is_known(other: str) -> None:
    assert is_alive(other) is None


def test_a_later_process_with_the_same_id_is_another_one() -> None:
    machine, pid, started = process_identity().rsplit(":", 2)
    assert is_alive(f"{machine}:{pid}:{int(started) - 1}") is False
    assert is_alive(f"{machine}:no number:{started}") is False
