"""The Azure Blob Storage backend. Entry: `backend`."""
