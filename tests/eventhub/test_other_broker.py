"""Receivers and senders with another project's AMQP 1.0 server: Apache Qpid Broker-J.

The broker has no `$cbs`: clients log in with a name and a password, and links are used without a token.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.eventhub._pyamqp import ReceiveClient, SendClient
from azure.eventhub._pyamqp.authentication import SASLPlainAuth
from azure.eventhub._pyamqp.constants import ReceiverSettleMode
from azure.eventhub._pyamqp.error import AMQPConnectionError, AMQPException, AMQPLinkError, RetryPolicy

from spark_ehbalance.eventhub.wire import encoder
from spark_ehbalance.eventhub.wire.client import check_usable
from spark_ehbalance.eventhub.wire.decoder import Decoder
from spark_ehbalance.eventhub.wire.encoder import EncodedBatch
from spark_ehbalance.eventhub.wire.frames import _bounded
from spark_ehbalance.eventhub.wire.link import LinkReader
from spark_ehbalance.eventhub.wire.sending_link import Deadline, SendingLink
from tests.eventhub.encodings import in_buffer, ordinary, section, text
from tests.processors.conftest import class_path
from tests.waiting import wait_until

BROKER = Path(__file__).with_name("broker")
DEADLINE = 60.0


def message(number: int) -> bytes:
    """A message as the service delivers it. One in ten is large, and two have another kind of body."""
    body = section(0x75, text(bytes(9000 if number % 10 == 3 else number % 300), 0xA0))
    if number % 10 == 7:
        body = section(0x75, text(b"one", 0xA0)) + section(0x75, text(b"two", 0xA0))
    elif number % 10 == 8:
        body = section(0x77, text(b"a value"))
    return ordinary(number, body)


MESSAGES = [message(number) for number in range(1000)]


class Broker:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._commands = process.stdin
        self._settings = {
            "auth": SASLPlainAuth("user", "password"),
            "use_tls": False,
            "socket_timeout": 5.0,
            "receive_settle_mode": ReceiverSettleMode.First,
            "retry_policy": RetryPolicy(retry_total=0),
        }
        self._host = f"localhost:{int(process.stdout.readline())}"

    def run(self, command: str) -> None:
        self._commands.write(command + "\n")
        self._commands.flush()

    def sender(self, queue: str) -> SendingLink:
        """A client's link as `Sender` uses it."""
        return SendingLink(self._opened(SendClient, queue, link_credit=0))

    @contextlib.contextmanager
    def reading(self, queue: str, prefetch: int = 100, **settings: Any) -> Iterator[LinkReader]:
        """A client's link as `Receiver` uses it."""
        client = self._opened(ReceiveClient, queue, **settings)
        client._cbs_authenticator = SimpleNamespace(
            _expires_on=float("inf"),
            _refresh_window=0,
            handle_token=bool,
            _on_execute_operation_complete=None,
            _mgmt_link=SimpleNamespace(_response_link=SimpleNamespace(_incoming_transfer=None)),
        )
        check_usable(client, client._link)
        reader = LinkReader(client, client._link, prefetch)
        try:
            yield reader
        finally:
            reader.close()

    def _opened(self, kind: type, queue: str, **settings: Any) -> Any:
        client = _bounded(kind, self._host, queue, **self._settings, **settings)
        client.open()
        wait_until(client.client_ready, "the link is attached", DEADLINE)
        return client


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    jars = class_path(BROKER / "pom.xml", tmp_path_factory)
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp", jars]
    command = ["java", *options, str(BROKER / "RunBroker.java"), str(BROKER / "configuration.json")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield Broker(process)


@pytest.fixture(scope="module", autouse=True)
def _plain_messages() -> Iterator[None]:
    """Avoids the batch's message format, which only the service supports."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encoder, "BATCH_FORMAT", 0)
        yield


def send(link: SendingLink, payloads: Iterable[bytes]) -> None:
    window = [EncodedBatch(1, payload) for payload in payloads]
    link.send(window, Deadline(DEADLINE))
    assert window == []


def read(reader: LinkReader, count: int, most: int = 100) -> list[bytes]:
    got = list[bytes]()
    deadline = time.monotonic() + DEADLINE
    while len(got) < count and time.monotonic() < deadline:
        got += reader.receive(min(most, count - len(got)), 1.0, count - len(got))
        reader.release()
    return got


def rows(messages: list[bytes]) -> Any:
    return Decoder("0", as_json=True).record_batch(in_buffer(messages))


@pytest.mark.parametrize(
    ("prefetch", "most", "settings"),
    [(1000, 300, {}), (0, 1, {"incoming_window": 1}), (7, 50, {"incoming_window": 40, "max_frame_size": 512})],
    ids=["large frames", "windows of one frame", "small frames and windows"],
)
def test_messages_arrive_whole_and_in_order(broker: Broker, prefetch: int, most: int, settings: dict[str, int]) -> None:
    queue = f"prefetch {prefetch}"
    send(broker.sender(queue), MESSAGES)
    with broker.reading(queue, prefetch, **settings) as reader:
        got = read(reader, len(MESSAGES), most)
        assert rows(got) == rows(MESSAGES)
        assert not rows(got).unreadable
        reader.confirm(DEADLINE)
        assert reader.is_usable()
        assert len(reader.receive(1, 0.0)) == 0


ENDS: dict[str, tuple[type[AMQPException], str]] = {
    "delete {queue}": (AMQPLinkError, "Destination .* has been removed"),
    "end sessions": (AMQPLinkError, "detached unexpectedly"),
    "close connections": (AMQPConnectionError, "closed by the broker"),
}


@pytest.mark.parametrize("command", ENDS)
def test_end_of_the_link_is_raised_after_the_preceding_messages(broker: Broker, command: str) -> None:
    kind, reason = ENDS[command]
    queue = command.split()[0]
    link = broker.sender(queue)
    send(link, MESSAGES[:20])
    with broker.reading(queue) as reader:
        got = list(reader.receive(1, DEADLINE))
        broker.run(command.format(queue=queue))
        with pytest.raises(kind, match=reason):
            got.extend(itertools.chain.from_iterable(iter(lambda: reader.receive(1, DEADLINE), None)))
        assert rows(got) == rows(MESSAGES[: len(got)])
    with pytest.raises(kind, match=reason):
        send(link, MESSAGES[:1])
