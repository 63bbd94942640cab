"""The write path: index lookup, data files and the commit of one transaction. Entry: `transaction`."""
