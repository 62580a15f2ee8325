"""Workflows: graphs of tasks that go on by themselves, whatever becomes of a worker.

A graph is drawn and checked here, stored as a whole, and moved forward in the transactions that end its tasks.
"""
