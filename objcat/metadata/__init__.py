"""What a table is: schema, settings, files, manifests, and the snapshot that a log replays to.

No data is read here. Begin with `snapshot` and `table_spec`.
"""
