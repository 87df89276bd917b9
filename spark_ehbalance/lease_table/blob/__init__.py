"""A group's state in the format of the Azure SDKs' blob checkpoint stores.

| module | content |
|---|---|
| `store` | `BlobStore`: reads and writes of the blobs |
| `rows` | a lease as observed by one handle |
| `layout` | the blobs' names and metadata |
| `container` | the requests |
| `locations` | the address of a container, and its options |
"""
