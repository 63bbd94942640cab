"""One transaction: its files, the index lookup, and its commit. Entry: `transaction`."""
