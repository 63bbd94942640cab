"""Table services: compaction, cleaning, purging, savepoints, restores, splits of buckets. Each is a plan, tasks, and one slot of the log.
`maintain` and `after` decide which of them are due.

Every service may run at any time, anywhere, twice and beside every writer. It yields to whoever was first, and plans again; no writer ever
conflicts with one that only rearranges rows.
"""
