"""What `ehbalance check` looks into, one file each for the event hub and the lease table's storage."""
