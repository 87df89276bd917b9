"""From the client's socket to Arrow: transfer frames become record batches without an object per event.

The *fast path* reads many messages at once. The *slow path* is its last tier, which reads the messages that are left,
one at a time; all tiers give the same rows. The modules, in the order in which an event passes them, and their CPU per
event:

| module          | what it does                                                                | µs CPU an event     |
|-----------------|-----------------------------------------------------------------------------|---------------------|
| `sources.py`    | reads the client's socket or websocket                                      | the kernel's copy   |
| `link.py`       | grants credit; other frames to the client                                   |                     |
| `transfers.py`  | finds the messages, frame by frame; runs of frames of one size by numpy     | 0.4; in runs 0.2    |
| `decoder.py`    | messages to Arrow, by tiers; logs at DEBUG what each tier read              | 0.2 to 0.5          |
| `scan.py`       | the fields of messages of one shape, by a template learned from one of them | 0.1 to 0.3          |
|                 | those of unlike messages, with their maps pair by pair                      | 1, and 0.1 a pair   |
| `messages.py`   | the slow path: one message or section in any encoding                       | 7 to 8, and its row |
| `values.py`     | for all: AMQP values from bytes, without recursion and within bounds        | in theirs           |
| `client.py`     | checks that azure-eventhub has the private parts that are used              |                     |
| `management.py` | not for events: requests to `$management` over a link of its own            |                     |

Where to look for a bug: messages are lost or doubled: `transfers.py`, `link.py`. A row is wrong by any tier:
`eventhub/rows.py`. Only the slow path's row is wrong: `messages.py`, `values.py`. Only one other tier's row is wrong:
that tier in `decoder.py`, then `scan.py`. `tests/eventhub/test_wire_decoder.py` compares all tiers with the slow path,
and `tests/eventhub/test_wire_messages.py` the slow path with the client's own decoder.
"""
