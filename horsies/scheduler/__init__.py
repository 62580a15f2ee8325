"""Running schedules: what they start, the loop that does, and schedules made at run time."""
