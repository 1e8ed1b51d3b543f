"""Console and Markdown tables, plots, one-file HTML."""
