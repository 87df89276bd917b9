"""A storage account on this machine whose requests can be delayed, counted and disturbed.

| file | what it holds |
|---|---|
| `azurite` | Azurite, the account in it, and storage options for a table there |
| `proxy` | `StorageProxy`: starts a relay in a process of its own and tells it what to do |
| `relay` | forwards requests, and disturbs those that a rule names |
| `faults` | kinds of requests and of faults |
| `identity` | issues tokens, which the storage does not know |
| `http` | reading of HTTP messages |
"""
