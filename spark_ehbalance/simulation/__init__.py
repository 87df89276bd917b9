"""Groups in simulated time: the real strategies and lease code with a simulated store, hub and queries."""
