"""Files of other programs as batches of rows: Parquet, ORC, Avro, CSV, JSON lines and text. Knows no table."""
