"""The Google Cloud Storage backend. Entry: `backend`."""
