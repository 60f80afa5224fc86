"""The reports of a run: records, progress, clock, summary."""
