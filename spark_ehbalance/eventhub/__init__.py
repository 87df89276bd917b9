"""All communication with Event Hubs through `azure-eventhub`, and the conversion of events to rows."""
