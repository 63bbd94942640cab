"""S3: `backend` is the entry."""
