"""Judging: intervals, claims and the overview of all verdicts."""
