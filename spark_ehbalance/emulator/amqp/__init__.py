"""An AMQP 1.0 server layer on the standard library alone. It knows nothing of Event Hubs."""
