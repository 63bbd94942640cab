"""Tools for the development of objcat: the environment, test servers, a fault proxy, the demo. They are not shipped."""
