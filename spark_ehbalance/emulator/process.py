"""The emulator as a process."""

from __future__ import annotations

import contextlib
import re
import signal
import threading

from .emulator import Emulator


def run(emulator: Emulator, control_port: int | None = None, *, hidden: bool = False, note: str = "") -> None:
    """Start `emulator`, print one line when it is ready, and stop it at SIGTERM or SIGINT.

    Only for the main thread. With `control_port` (0 takes a free port) the line names that port too, as it names the
    port for websockets and the CA file; the key is `hidden` if it is a secret, and `note` ends it. Raises what
    `Emulator.start` raises.
    """
    stopped = threading.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: stopped.set())
    with emulator:
        more = [] if control_port is None else [f"control port {emulator.open_control_port(control_port)}"]
        with contextlib.suppress(RuntimeError):
            more.append(f"websocket port {emulator.websocket_port}")
        with contextlib.suppress(RuntimeError):
            more.append(f"CA file {emulator.ca_file}")
        rest = f" ({', '.join(more)})" if more else ""
        string = emulator.connection_string()
        if hidden:
            string = re.sub("SharedAccessKey=[^;]*", "SharedAccessKey=(not shown)", string)
        print(f"Emulator ready: {string}{rest}{note}", flush=True)
        # waits with a timeout: on some systems a signal does not interrupt a wait without one
        while not stopped.wait(1.0):
            pass
