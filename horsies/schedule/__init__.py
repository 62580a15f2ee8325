"""Schedules: their patterns and slots, the scheduler that runs them, and the API to change them at run time."""
