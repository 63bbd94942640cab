"""Mirrors as Apache Iceberg, version 2 with position deletes or version 3 with deletion vectors. Begin with `mirror.py`."""
