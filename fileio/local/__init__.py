"""The backend of a local file system. Entry: `backend`."""
