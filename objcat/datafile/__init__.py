"""Data files: Parquet, merges of sorted rows, statistics, bloom filters, hashes of keys. Arrow in, Arrow out. Entry: `parquet`."""
