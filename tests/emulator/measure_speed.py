"""Server CPU per 1 KB event sent to a plain socket.

python -m tests.emulator.measure_speed [EVENTS] [emulator options]
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time

from spark_ehbalance.emulator import EmulatorControl
from spark_ehbalance.emulator.amqp.codec import Described, ULong
from spark_ehbalance.emulator.amqp.frames import AMQP_HEADER, Attach, Begin, Flow, Open, encode_frame

BODY = b"x" * 1024
WINDOW = 0xFFFFFFFF


def main(events: int, options: list[str]) -> None:
    command = [sys.executable, "-m", "spark_ehbalance.emulator", "--port", "0", "--hub", "hub:1", "--control-port", "0"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"localhost:(\d+);.*control port (\d+)", line)
        assert found is not None, line
        try:
            _measure(process.pid, int(found[1]), int(found[2]), events)
        finally:
            process.terminate()


def _measure(pid: int, port: int, control_port: int, events: int) -> None:
    with EmulatorControl("127.0.0.1", control_port) as control:
        control.append("hub", 0, [BODY] * events)
        frames = control.partition_state("hub", 0).bytes_held  # a frame is as long as the record it is made of
    with socket.create_connection(("127.0.0.1", port)) as peer:
        source = Described(ULong(0x28), ["hub/ConsumerGroups/$Default/Partitions/0"] + [None] * 10)
        setup = (Open("measure", None, 1 << 20), Begin(None, 0, WINDOW, 1), Attach("r", 0, True, source=source))
        peer.sendall(AMQP_HEADER + b"".join(encode_frame(0, each) for each in setup))
        time.sleep(0.2)
        peer.recv(1 << 16)
        before, begun, received = _cpu_seconds(pid), time.perf_counter(), 0
        peer.sendall(encode_frame(0, Flow(0, WINDOW, 0, 1, 0, 0, events)))
        buffer = bytearray(1 << 20)
        while received < frames:
            received += peer.recv_into(buffer)
        seconds, cpu = time.perf_counter() - begun, _cpu_seconds(pid) - before
    print(f"{events:,} events: {events / seconds:,.0f} events/s, server CPU {cpu / events * 1e6:.2f} µs an event")


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000, sys.argv[2:])
