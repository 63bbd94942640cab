"""Read plans: pure functions of a snapshot, run by either engine. Entry: `scan`."""
