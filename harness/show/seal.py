"""Whether a run's evidence is what was measured, in words."""

from __future__ import annotations

from evenhand.store import SUMS, Run, changed_files


def broken_seal(run: Run) -> list[str]:
    """Why a run's evidence cannot be trusted, one sentence each; empty where it is as it was sealed, or not sealed yet.

    Raises StoreError when the list of its sums cannot be read.
    """
    changed = changed_files(run.path)
    if changed:
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        return [f"evidence changed since it was sealed: {', '.join(changed[:5])}{more}"]
    if not (run.path / SUMS).exists() and run.manifest.status != "running":
        return [f"the list of the run's sha256 is gone ({SUMS}): whether its evidence changed cannot be told"]
    return []
