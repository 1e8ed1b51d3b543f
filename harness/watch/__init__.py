"""Samplers in a process of their own: exposition scan, NVML, probe reader."""
