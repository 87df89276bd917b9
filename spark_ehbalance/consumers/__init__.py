"""Plain Python consumers in a group of Spark queries: checkpoint stores for azure-eventhub's `EventHubConsumerClient`.

`DeltaCheckpointStore` here is for the synchronous client, the one in `spark_ehbalance.consumers.aio` for the
asynchronous one.
"""

from spark_ehbalance.consumers.checkpoint_store import DeltaCheckpointStore

__all__ = ["DeltaCheckpointStore"]
