"""What users hold of a place: `Lake`, and tables without a lake. Entry: `lake`."""
