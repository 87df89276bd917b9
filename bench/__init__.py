"""Measurements: `python -m bench.NAME`, each prints what it has measured beside its bar."""
