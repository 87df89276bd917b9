"""The checks of the event hub: connection, rights, and the service's limits."""

from __future__ import annotations

import statistics
import time
from collections.abc import Generator, Mapping

from spark_ehbalance.errors import ClientVersionError, HubUnavailableError, MalformedEventError
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.metadata import HubMetadata, PartitionState
from spark_ehbalance.eventhub.poll_schedule import MOST_REQUESTS
from spark_ehbalance.eventhub.receiver import Disconnected, PartitionAddress, Receiver
from spark_ehbalance.eventhub.refusals import Unreachable
from spark_ehbalance.eventhub.wire.client import TESTED
from spark_ehbalance.ops.checks.findings import Finding, failed, ok, warning
from spark_ehbalance.text import iso

_RIGHT = "that the credential has the role Azure Event Hubs Data Receiver, or the key the right Listen"

_INSTALL = f"pip install azure-eventhub=={TESTED}"

#: Requests of which the median is shown.
_REQUESTS = 5

#: Seconds to wait for an event that the partition has.
_PATIENCE = 10.0

#: Seconds for one poll of all partitions that are worth a warning: a long trigger interval.
_SLOW_POLL = 10.0


def check_hub(
    connection: Connection, consumer_group: str
) -> Generator[Finding, None, tuple[tuple[str, ...], int | None] | None]:
    """The findings one by one; a failure that would recur ends them. Returns the hub's partitions and its time of
    creation (None: unknown); None if the hub cannot be reached."""
    with HubMetadata(connection, consumer_group) as metadata:
        began = time.monotonic()
        try:
            partitions = metadata.partition_ids()
            connected = time.monotonic() - began
            created = "" if metadata.created_ms is None else f", created {iso(metadata.created_ms)}"
            yield ok(
                "event hub",
                f"{connection.hub!r} at {connection.namespace} has {len(partitions)} partitions{created}; "
                f"connected in {connected:.2f} s",
            )
            times = []
            for _ in range(_REQUESTS):
                began = time.monotonic()
                metadata.partition_states(partitions[:1])
                times.append(time.monotonic() - began)
            states = metadata.partition_states(partitions)
        except ClientVersionError as error:
            yield failed("event hub", str(error), _INSTALL)
            return None
        except HubUnavailableError as error:
            yield failed(
                "event hub",
                str(error),
                f"check the names of namespace and hub, the way to it (docs/networks.md), and {_RIGHT}",
            )
            return None
    yield ok("answers", f"a request takes {1000 * statistics.median(times):.0f} ms (median of {_REQUESTS})")
    yield _polling(len(partitions))
    yield _reading(connection, consumer_group, states)
    return partitions, metadata.created_ms


def _polling(partitions: int) -> Finding:
    """How long one poll of all partitions takes."""
    seconds = partitions / MOST_REQUESTS
    text = f"{partitions} partitions are polled within {max(1.0, seconds):.0f} s at most"
    if seconds <= _SLOW_POLL:
        return ok("limits", text)
    return warning(
        "limits",
        f"{text}, as Event Hubs answers 50 such requests a second",
        "expect the first event of a partition that was idle to be read that late",
    )


def _reading(connection: Connection, consumer_group: str, states: Mapping[str, PartitionState]) -> Finding:
    """Whether events can be read: the last one of a partition, without an owner level, which disturbs no query."""
    what = "reading"
    partition, state = max(states.items(), key=lambda each: each[1].end - each[1].begin)
    empty = state.begin >= state.end
    address = PartitionAddress(connection, consumer_group, partition)
    receiver = Receiver(address, state.end if empty else state.end - 1, owner_level=None, prefetch=1)
    began = time.monotonic()
    try:
        rows, deadline = 0, began + _PATIENCE
        while not rows and time.monotonic() < deadline:
            rows = receiver.receive(1, 1.0, 1).num_rows
            if empty:
                break
        seconds = time.monotonic() - began
    except Disconnected as other:
        level = "no owner level" if other.epoch is None else f"owner level {other.epoch}"
        return ok(
            what, f"partition {partition} is being read by another reader, with {level}; the right to read is there"
        )
    except MalformedEventError as error:
        return warning(what, str(error), "see the option onMalformed")
    except ClientVersionError as error:
        return failed(what, str(error), _INSTALL)
    except (HubUnavailableError, Unreachable) as error:
        return failed(
            what,
            f"partition {partition} could not be read in consumer group {consumer_group!r}: {error}",
            f"check that the consumer group exists, and {_RIGHT}",
        )
    finally:
        receiver.close()
    if not rows and not empty:
        return failed(
            what,
            f"no event came of partition {partition} within {_PATIENCE:g} s, although it has {state.end - state.begin}",
            "run the check again; if it stays so, look at the namespace's throttled requests",
        )
    text = f"consumer group {consumer_group!r}, partition {partition}: "
    text += "attached, and empty" if empty else f"an event came within {seconds:.2f} s"
    return ok(what, text)
