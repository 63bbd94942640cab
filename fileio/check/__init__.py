"""The check of a store: does it keep the promises that commits need? `probe` is the entry."""
