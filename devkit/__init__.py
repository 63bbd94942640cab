"""Tools for those who work on objcat: the environment, test servers, a fault proxy, the demo. Not shipped."""
