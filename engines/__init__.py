"""Engines: one module each; `engine(name)` finds built-in ones and those of the entry-point group `evenhand.engines`."""

from evenhand.engines.registry import engine, engine_for, engine_names

__all__ = ["engine", "engine_for", "engine_names"]
