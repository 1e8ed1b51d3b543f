"""Pure functions of a stored run: equality, pressure, timing, fairness, verdict."""
