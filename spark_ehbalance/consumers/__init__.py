"""Checkpoint stores with which azure-eventhub's `EventHubConsumerClient` joins a group of Spark queries.

This module's `DeltaCheckpointStore` is for the synchronous client; the one in `spark_ehbalance.consumers.aio` is for
the asynchronous client.
"""

from spark_ehbalance.consumers.checkpoint_store import DeltaCheckpointStore

__all__ = ["DeltaCheckpointStore"]
