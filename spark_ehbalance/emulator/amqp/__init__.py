"""The server side of AMQP 1.0 without I/O. It knows nothing of Event Hubs.

A `Connection` takes the bytes of one client, asks its subclass for an `Endpoint` for each link, and collects
what is to be sent. Imports run one way: connection → session → frames → codec → errors
"""
