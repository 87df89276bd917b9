"""The lease store that keeps a group as the Azure SDKs' blob checkpoint stores do.

| file | what it holds |
|---|---|
| `store` | `BlobStore`: what is written for a change, and what that has made of it |
| `rows` | a lease as one handle sees it change |
| `layout` | the blobs' names and metadata |
| `container` | the requests |
| `locations` | the address of a container, and its options |
"""

from spark_ehbalance.lease_table.blob.store import BlobStore

__all__ = ["BlobStore"]
