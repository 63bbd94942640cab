"""Kafka as a source, by offsets that are committed with the rows. Begin with `source.py`."""
