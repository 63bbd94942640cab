"""Native plans: relations that Spark scans by itself, and the merge of base files and log files as one query. Entry: `scan`."""
