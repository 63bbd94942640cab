"""Mirrors: each slot of a table as metadata of Iceberg and of Delta, over the same data files.

Other engines read a table by its mirrors, and see exactly the rows of `Table.scan` at that slot. No row is written again: base files and
log files are named as they are, and rows that do not count are masked by their position.

Begin with `mirror.py`: it goes from the newest mirrored slot to the newest slot of the log. `changes.py` computes what a slot changes, as a
`MirrorChange` (`model.py`), `whole_table.py` with what a mirror begins, and `superseded_rows.py` finds the rows that no longer count.
`iceberg/` and `delta/` write it in their formats.
"""
