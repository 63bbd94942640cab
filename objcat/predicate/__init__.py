"""Filters: parsed once, then translated to Arrow, file bounds, DuckDB and Spark. Entry: `parse`."""
