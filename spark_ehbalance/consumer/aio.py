"""azure-eventhub's asynchronous `CheckpointStore` over a lease table in Delta."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from azure.eventhub.aio import CheckpointStore

from spark_ehbalance.consumer.checkpoint_store import DeltaCheckpointStore as _Blocking

__all__ = ["DeltaCheckpointStore"]

#: Checkpoints of so many partitions are waited for at once, and go along with one commit.
_CHECKPOINTS_AT_ONCE = 32

_T = TypeVar("_T")


class DeltaCheckpointStore(CheckpointStore):
    """As `spark_ehbalance.consumer.DeltaCheckpointStore`, for the client in `azure.eventhub.aio`:

        async with DeltaCheckpointStore(...) as store:
            async with EventHubConsumerClient.from_connection_string(..., checkpoint_store=store) as client:
                await client.receive(on_event=...)

    What blocks is done in threads: list and claim one at a time, checkpoints at once.
    """

    def __init__(self, location: str, **options: Any) -> None:
        """The arguments are those of `spark_ehbalance.consumer.DeltaCheckpointStore`. Raises `OptionError`."""
        self._store = _Blocking(location, **options)
        self._balancing = ThreadPoolExecutor(1, "ehbalance-balancing")
        self._checkpoints = ThreadPoolExecutor(_CHECKPOINTS_AT_ONCE, "ehbalance-checkpoint")

    async def list_ownership(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """As the blocking store's."""
        named = (fully_qualified_namespace, eventhub_name, consumer_group)
        return await self._in(self._balancing, self._store.list_ownership, *named)

    async def claim_ownership(self, ownership_list: Iterable[dict[str, Any]], **kwargs: Any) -> list[dict[str, Any]]:
        """As the blocking store's."""
        return await self._in(self._balancing, self._store.claim_ownership, list(ownership_list))

    async def update_checkpoint(self, checkpoint: Mapping[str, Any], **kwargs: Any) -> None:
        """As the blocking store's. It is written even if the task is cancelled, as it is when the client stops."""
        await asyncio.shield(self._in(self._checkpoints, self._store.update_checkpoint, checkpoint))

    async def list_checkpoints(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """As the blocking store's."""
        named = (fully_qualified_namespace, eventhub_name, consumer_group)
        return await self._in(self._balancing, self._store.list_checkpoints, *named)

    async def close(self) -> None:
        """As the blocking store's."""
        await asyncio.to_thread(self._store.close)
        self._balancing.shutdown(wait=False)
        self._checkpoints.shutdown(wait=False)

    async def _in(self, pool: ThreadPoolExecutor, call: Callable[..., _T], *arguments: Any) -> _T:
        if not self._store.usable:
            return call(*arguments)  # which says so; the pool has no threads
        return await asyncio.get_running_loop().run_in_executor(pool, partial(call, *arguments))

    async def __aenter__(self) -> DeltaCheckpointStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()
