"""Azure Blob Storage: `backend` is the entry."""
