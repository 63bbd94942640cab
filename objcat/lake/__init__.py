"""Lakes, and tables without a lake. Entry: `lake.py`."""
