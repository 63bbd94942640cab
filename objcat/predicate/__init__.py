"""Filters: parsed once, and translated to Arrow, to bounds of files, to DuckDB and to Spark. Entry: `parse`."""
