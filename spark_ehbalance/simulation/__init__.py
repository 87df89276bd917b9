"""A group in made-up time: the real strategies and lease code on a simulated store, hub and members."""
