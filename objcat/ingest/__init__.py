"""Databases and logs into the lake: `objcat ingest`. Begin with `runner.py`; `model.py` is what a source hands over."""
