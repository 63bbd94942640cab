"""Row-level DML: update, delete, merge and overwrite, as programs over rows. Entry: `program`."""
