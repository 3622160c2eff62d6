"""The embedded engine: gangs of processes on this host, no service needed."""
