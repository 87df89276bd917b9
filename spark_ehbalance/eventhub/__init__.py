"""Everything that talks to Event Hubs by `azure-eventhub`; and what an event is as a row."""
