"""azure-eventhub's asynchronous `CheckpointStore` over a lease table in Delta."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from azure.eventhub.aio import CheckpointStore

from spark_ehbalance.consumers.checkpoint_store import DeltaCheckpointStore as _Blocking

__all__ = ["DeltaCheckpointStore"]


class DeltaCheckpointStore(CheckpointStore):
    """`spark_ehbalance.consumers.DeltaCheckpointStore` for the client in `azure.eventhub.aio`. Each method runs in a
    thread, and completes even if the call is cancelled."""

    def __init__(self, options: Mapping[str, str], **times: float) -> None:
        """For the arguments, see `spark_ehbalance.consumers.DeltaCheckpointStore`. Raises `OptionError`."""
        self._store = _Blocking(options, **times)

    async def list_ownership(self, *named: str, **kwargs: Any) -> list[dict[str, Any]]:
        """See the blocking store."""
        return await asyncio.to_thread(self._store.list_ownership, *named, **kwargs)

    async def claim_ownership(self, ownership_list: Iterable[dict[str, Any]], **kwargs: Any) -> list[dict[str, Any]]:
        """See the blocking store."""
        return await asyncio.to_thread(self._store.claim_ownership, list(ownership_list))

    async def update_checkpoint(self, checkpoint: Mapping[str, Any], **kwargs: Any) -> None:
        """See the blocking store."""
        self._store._add(checkpoint)
        await asyncio.to_thread(self._store._write, checkpoint)

    async def list_checkpoints(self, *named: str, **kwargs: Any) -> list[dict[str, Any]]:
        """See the blocking store."""
        return await asyncio.to_thread(self._store.list_checkpoints, *named, **kwargs)

    async def close(self) -> None:
        """See the blocking store."""
        await asyncio.to_thread(self._store.close)

    async def __aenter__(self) -> DeltaCheckpointStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()
