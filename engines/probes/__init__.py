"""Plug-ins that look into an engine from inside; placed in an arm through PYTHONPATH, never installed."""
