"""The embedded engine: a real server with a real block pool, a reference model and not a measurement."""
