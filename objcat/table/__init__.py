"""`Table` and its scans, change feeds, transactions and row-level operations. Entry: `table.py`."""
