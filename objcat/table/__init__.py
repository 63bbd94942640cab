"""What a handle does to its table by more than writing one batch: deletes by a filter, updates and merges, overwrites, batches that follow
another table, erasures."""
