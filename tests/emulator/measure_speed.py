"""Server CPU per 1 KB event, received from and sent to the emulator on a plain socket.

python -m tests.emulator.measure_speed [EVENTS] [emulator options]
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable

import psutil

from spark_ehbalance.emulator.amqp.codec import Described, ULong, encode
from spark_ehbalance.emulator.amqp.frames import Attach, Close, Flow, Transfer, encode_frame
from spark_ehbalance.emulator.message import BATCH_FORMAT

from .raw import PARTITION, RawPeer
from .test_command import running

MESSAGE = encode(Described(ULong(0x75), b"x" * 1024))
WINDOW = 0xFFFFFFFF
BATCH = 50  # events in a batch, which then fits into one frame


def main(events: int, options: list[str]) -> None:
    with running(*options) as (process, connection, control):
        port = int(re.search(r":(\d+);", connection)[1])  # type: ignore[index]
        control.append("hub", 0, [b"x" * 1024] * events)
        expected = control.partition_state("hub", 0).bytes_held  # a frame is as long as the record it is made of
        with RawPeer.opened(port, max_frame_size=1 << 20) as peer:
            peer.attach_receiver(f"{PARTITION}0")
            peer.expect(Attach)
            _measure("received", process.pid, events, lambda: _receive(peer, events, expected))
        for what, batch, count in (("sent in batches", BATCH, events // 10), ("sent singly", 1, events // 50)):
            payload = MESSAGE if batch == 1 else encode(Described(ULong(0x75), MESSAGE)) * batch
            first = Transfer(0, 0, b"t", 0 if batch == 1 else BATCH_FORMAT)
            sent = [encode_frame(0, first._replace(delivery_id=n), payload) for n in range(0, count, batch)]
            with RawPeer.opened(port) as peer:
                peer.attach_sender("hub/Partitions/1")
                peer.expect(Flow)
                _measure(what, process.pid, count, lambda: _send(peer, b"".join(sent)))  # noqa: B023


def _measure(what: str, pid: int, events: int, run: Callable[[], None]) -> None:
    cpu, begun = _cpu_seconds(pid), time.perf_counter()
    run()
    cpu, seconds = _cpu_seconds(pid) - cpu, time.perf_counter() - begun
    each = f"server CPU {cpu / events * 1e6:.2f} µs an event"
    print(f"{events:,} events {what}: {events / seconds:,.0f} events/s, {each}", flush=True)


def _receive(peer: RawPeer, events: int, expected: int) -> None:
    received, buffer = 0, bytearray(1 << 20)
    peer.credit(events, window=WINDOW)
    while received < expected:
        received += peer.socket.recv_into(buffer)


def _send(peer: RawPeer, frames: bytes) -> None:
    sender = threading.Thread(target=peer.socket.sendall, args=(frames + encode_frame(0, Close()),))
    sender.start()
    while peer.socket.recv(1 << 20):  # dispositions, until the server closes
        pass
    sender.join()


def _cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000, sys.argv[2:])
