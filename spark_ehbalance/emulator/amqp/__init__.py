"""The server side of AMQP 1.0 without I/O: bytes in, events and bytes to send out. It knows nothing of Event Hubs.

A `Connection` takes the bytes of one client and yields events (`events.py`). The caller answers them by calling methods
of the connection and of its links, and sends what `Connection.data_to_send` returns. Imports run one way:

connection → session → events → link → channel → frames → codec → errors
"""
