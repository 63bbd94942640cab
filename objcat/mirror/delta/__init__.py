"""The Delta mirror: `mirror.py` writes and reads it. The other modules have its actions, schema, statistics, vectors, checkpoints."""
