"""Checks that a consumer group exists, by a receiver: answers to requests do not depend on the group."""

from __future__ import annotations

import contextlib

from spark_ehbalance.errors import HubUnavailableError, MissingError
from spark_ehbalance.hub.conditions import Meaning, explained
from spark_ehbalance.hub.receiver import Disconnected, PartitionAddress, Receiver, Unreachable
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Seconds for the answer: several round trips, also to another continent.
_PATIENCE = 2.0


def check_group(address: PartitionAddress) -> None:
    """Raise `MissingError` if the consumer group does not exist; the hub is known to exist.

    Opens a receiver of a partition that the hub has, without an owner level, so that it disconnects nobody. Raises
    `ClientVersionError` too. Whatever else is wrong is left to those who read.
    """
    try:
        with contextlib.closing(Receiver(address, 0, owner_level=None, prefetch=1)) as receiver:
            receiver.confirm(_PATIENCE)
    except MissingError as missing:
        connection, group = address.connection, address.consumer_group
        text = explained(Meaning.NO_GROUP, connection.namespace, connection.hub, group, None)
        raise missing if missing.sure else MissingError(text) from missing
    except (Disconnected, Unreachable, HubUnavailableError) as error:
        _LOG.debug("consumer group %s: %s", address.consumer_group, error)
