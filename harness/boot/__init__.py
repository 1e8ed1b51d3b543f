"""A child engine's life: guardian, overlay, port, process tree, readiness, log, refusal, stop."""
