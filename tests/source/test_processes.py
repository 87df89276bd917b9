"""Whether a process lives, as far as this machine can tell, and owner ids. CPU times are tested with the load meter,
Spark's master with locations."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from spark_ehbalance.source.options import stream_options
from spark_ehbalance.source.processes import is_alive, local_cores, mint_owner_id, process_identity

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


def test_owner_ids_are_unique_and_valid() -> None:
    ids = {mint_owner_id() for _ in range(100)}
    assert len(ids) == 100
    key = "SharedAccessKeyName=n;SharedAccessKey=k"
    for each in ids:
        raw = {"connectionString": f"Endpoint=sb://h/;{key};EntityPath=hub", "leaseTable": "/tmp/t", "ownerId": each}
        assert stream_options(raw).owner_id == each


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[4]", 4),
        ("local[3, 2]", 3),
        ("local[*]", os.cpu_count()),
        ("local-cluster[2, 3, 1024]", 6),
        ("spark://host:7077", None),
        ("yarn", None),
        (None, None),
    ],
)
def test_a_local_master_tells_how_many_tasks_run_at_the_same_time(master: str | None, cores: int | None) -> None:
    assert local_cores(master) == cores
