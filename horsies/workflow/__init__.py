"""Workflows: graphs of tasks that advance whatever happens to a worker.

A graph is defined and validated here, stored as a whole, and advanced in the transactions that end its tasks.
"""
