"""evenhand: even-handed comparison of LLM inference engines.

Data goes one way: scenario -> plan -> legs (boot, prove, warm, drive + watch, settle, stop) -> rows on disk
-> judge -> show. A run directory is the only interface between measuring and judging.
"""

__version__ = "0.1.0"
