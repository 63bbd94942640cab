"""Google Cloud Storage: `backend` is the entry."""
