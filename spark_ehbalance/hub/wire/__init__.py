"""From the client's socket to Arrow: transfer frames become record batches without an object per event.

The *fast path* reads many messages at once. The *slow path* is its last tier, which reads the messages that are left,
one at a time; all tiers give the same rows. The modules, in the order in which an event passes them, and their CPU per
event:

| module          | what it does                                                                | µs CPU an event     |
|-----------------|-----------------------------------------------------------------------------|---------------------|
| `link.py`       | reads the client's socket, grants credit; other frames to the client        | the kernel's copy   |
| `transfers.py`  | finds the messages, frame by frame; runs of frames of one size by numpy     | 0.4; in runs 0.2    |
| `decoder.py`    | messages to a record batch, by tiers; logs at DEBUG what each tier read     | by tier             |
| `templates.py`  | tiers "known template", "new template": the fields of messages of one shape | 0.1 to 0.3          |
| `pairs.py`      | tier "any shape": the sections and maps of unlike messages                  | 1, and 0.1 a pair   |
| `messages.py`   | tier "slow path": one message or section in any encoding                    | 7 to 8, and its row |
| `scan.py`       | for templates and pairs: the same part of many messages at once             | in theirs           |
| `arrays.py`     | for the decoder: Arrow arrays as slices of the buffer, copied once          | 0.2 to 0.5          |
| `values.py`     | for all: AMQP values from bytes, without recursion and within bounds        | in theirs           |
| `client.py`     | checks that azure-eventhub has the private parts that are used              |                     |
| `management.py` | not for events: requests to `$management` over a link of its own            |                     |

Where to look for a bug: messages are lost or doubled: `transfers.py`, `link.py`. A row is wrong by any tier:
`hub/rows.py`. Only the slow path's row is wrong: `messages.py`, `values.py`. Only one other tier's row is wrong: that
tier in `decoder.py`, then its module. `tests/hub/test_wire_decoder.py` compares all tiers with the slow path, and
`tests/hub/test_wire_messages.py` the slow path with the client's own decoder.
"""
