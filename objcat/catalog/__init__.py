"""Names of tables and namespaces, kept in a log of their own. Entry: `catalog`."""
