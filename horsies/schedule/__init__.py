"""Schedules as values: patterns, the instants they stand for, and what they start. No I/O."""
