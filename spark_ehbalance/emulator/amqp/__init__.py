"""The server side of AMQP 1.0 without I/O. Independent of Event Hubs.

A `Connection` processes the bytes of one client, gets an `Endpoint` for each link from its subclass, and collects the
bytes to send. Modules import only in this direction: connection → session → frames → codec → errors
"""
