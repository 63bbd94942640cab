"""What users hold of one table: `Table` and its scans, change feeds, transactions and row-level operations. Entry: `table`."""
