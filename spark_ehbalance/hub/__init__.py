"""The edge to Event Hubs: everything that talks to `azure-eventhub`."""
