"""Random runs of whole queries in simulated time: `python -m storm`. The engines are the real ones."""
