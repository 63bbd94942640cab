"""Names of tables and namespaces, in a log of their own. Begin with `catalog`."""
