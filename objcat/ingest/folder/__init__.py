"""A landing folder of Parquet, CSV, JSON and Avro files as a source."""
