"""Scenarios that ship with evenhand: TOML files to copy and edit."""
