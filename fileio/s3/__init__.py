"""The S3 backend. Entry: `backend`."""
