"""Plain Python consumers in a group of Spark queries: checkpoint stores for azure-eventhub's `EventHubConsumerClient`.

This module's `DeltaCheckpointStore` is for the synchronous client; the one in `spark_ehbalance.consumers.aio` is for
the asynchronous client.
"""

from spark_ehbalance.consumers.checkpoint_store import DeltaCheckpointStore

__all__ = ["DeltaCheckpointStore"]
