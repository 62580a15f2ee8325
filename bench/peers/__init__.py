"""Other task queues beside this one, in one run: each in an environment of its own, on the same servers."""
