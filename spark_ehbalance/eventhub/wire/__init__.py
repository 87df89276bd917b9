"""AMQP from the client's socket to Arrow: transfer frames become record batches without an object per event.

The first tiers, the *fast path*, read many messages at once. The last tier, the *slow path*, reads the remaining
messages one at a time. All tiers return the same rows. The modules, in the order of the data flow, with their CPU time
per event:

| module          | task                                                                        | µs CPU per event    |
|-----------------|-----------------------------------------------------------------------------|---------------------|
| `sources.py`    | reads the client's socket or websocket                                      | the kernel's copy   |
| `link.py`       | grants credit; passes other frames to the client                            |                     |
| `transfers.py`  | finds the messages: frame by frame, or runs of equal frames with numpy      | 0.4; in runs 0.2    |
| `decoder.py`    | converts messages to Arrow in tiers; logs each tier's count at DEBUG        | 0.2 to 0.5          |
| `scan.py`       | finds the fields of messages of one shape with a template from one of them  | 0.1 to 0.3          |
|                 | finds the fields of unlike messages, reading their maps pair by pair        | 1, and 0.1 a pair   |
| `messages.py`   | the slow path: parses one message or section in any encoding                | 7 to 8, and its row |
| `values.py`     | decodes AMQP values for these modules, without recursion and with limits    | included            |
| `client.py`     | checks that azure-eventhub has the internals that this package uses         |                     |
| `management.py` | sends requests to `$management` over a separate link                        |                     |

`encoder.py` encodes events as batches, and `sending_link.py` sends them.

Where to look for a bug: if messages are lost or duplicated, in `transfers.py` and `link.py`; if all tiers return a
wrong row, in `eventhub/rows.py`; if only the slow path does, in `messages.py` and `values.py`; if only another tier
does, in that tier in `decoder.py`, then in `scan.py`. `tests/eventhub/test_wire_decoder.py` compares all tiers with the
slow path, and `tests/eventhub/test_wire_messages.py` the slow path with the client's decoder.
"""
