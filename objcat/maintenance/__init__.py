"""Table services: compaction, clustering, clean, purge, savepoints, restore, bucket splits. `maintain.py` is the entry.

A service is a plan, tasks that write files, and one slot of the log. `maintain.py` and `auto.py` decide which ones are due.
A service may run at any time, on any machine, twice, and next to every writer. When it loses a conflict it yields and plans again.
A service that only rearranges rows never makes a writer conflict.
"""
