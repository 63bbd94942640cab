"""Read-only inspection: table statistics, scan explanations, history, and checks for damage. Entry: `doctor`."""
