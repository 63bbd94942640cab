"""Native plans: relations that Spark scans itself, and the merge of base and log files as one query. Entry: `scan.py`."""
