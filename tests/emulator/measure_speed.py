"""Server CPU per 1 KB event, received from and sent to the emulator on a plain socket.

python -m tests.emulator.measure_speed [EVENTS] [emulator options]
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from spark_ehbalance.emulator import EmulatorControl
from spark_ehbalance.emulator.amqp.codec import Described, ULong, encode
from spark_ehbalance.emulator.amqp.frames import AMQP_HEADER, Attach, Begin, Close, Flow, Open, Transfer, encode_frame
from spark_ehbalance.emulator.message import BATCH_FORMAT

from .raw import PARTITION, source, target

MESSAGE = encode(Described(ULong(0x75), b"x" * 1024))
WINDOW = 0xFFFFFFFF
BATCH = 50  # events in a batch, which then fits into one frame


def main(events: int, options: list[str]) -> None:
    command = [sys.executable, "-m", "spark_ehbalance.emulator", "--port", "0", "--hub", "hub:2", "--control-port", "0"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"localhost:(\d+);.*control port (\d+)", line)
        assert found is not None, line
        port, control_port = int(found[1]), int(found[2])
        try:
            _measure("received", process.pid, events, lambda: _receive(port, control_port, events))
            _measure("sent in batches", process.pid, events // 10, lambda: _send(port, events // 10, BATCH))
            _measure("sent singly", process.pid, events // 50, lambda: _send(port, events // 50, 1))
        finally:
            process.terminate()


def _measure(what: str, pid: int, events: int, run: Callable[[], Iterator[None]]) -> None:
    """Time the second step of `run`."""
    steps = run()
    next(steps)
    cpu, begun = _cpu_seconds(pid), time.perf_counter()
    next(steps)
    cpu, seconds = _cpu_seconds(pid) - cpu, time.perf_counter() - begun
    steps.close()  # type: ignore[attr-defined]
    each = f"server CPU {cpu / events * 1e6:.2f} µs an event"
    print(f"{events:,} events {what}: {events / seconds:,.0f} events/s, {each}", flush=True)


def _receive(port: int, control_port: int, events: int) -> Iterator[None]:
    with EmulatorControl("127.0.0.1", control_port) as control:
        control.append("hub", 0, [b"x" * 1024] * events)
        expected = control.partition_state("hub", 0).bytes_held  # a frame is as long as the record it is made of
    with _peer(port, Attach("r", 0, True, source=source(f"{PARTITION}0"))) as peer:
        yield
        received = 0
        peer.sendall(encode_frame(0, Flow(0, WINDOW, 0, 1, 0, 0, events)))
        buffer = bytearray(1 << 20)
        while received < expected:
            received += peer.recv_into(buffer)
        yield


def _send(port: int, events: int, batch: int) -> Iterator[None]:
    single = batch == 1
    payload = MESSAGE if single else encode(Described(ULong(0x75), MESSAGE)) * batch
    first = Transfer(0, 0, b"t", 0 if single else BATCH_FORMAT)
    frames = b"".join(
        encode_frame(0, first._replace(delivery_id=number), payload) for number in range(0, events, batch)
    )
    with _peer(port, Attach("s", 0, False, target=target("hub/Partitions/1"))) as peer:
        yield
        sender = threading.Thread(target=peer.sendall, args=(frames + encode_frame(0, Close()),))
        sender.start()
        while peer.recv(1 << 20):  # dispositions, until the server closes
            pass
        sender.join()
        yield


@contextmanager
def _peer(port: int, attach: Attach) -> Iterator[socket.socket]:
    """A socket with an attached link."""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        setup = (Open("measure", None, 1 << 20), Begin(None, 0, WINDOW, 1), attach)
        peer.sendall(AMQP_HEADER + b"".join(encode_frame(0, each) for each in setup))
        time.sleep(0.2)
        peer.recv(1 << 16)
        yield peer


def _cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000, sys.argv[2:])
