"""Data files: Parquet base files and log objects, with casts, merge, statistics and bloom filters. Entry: `parquet`."""
