"""The local file system: `backend` is the entry."""
