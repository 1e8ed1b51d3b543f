"""Pool arithmetic: what an engine should need, before it runs."""
