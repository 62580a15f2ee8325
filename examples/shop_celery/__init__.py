"""The task modules of `examples/shop`, written for Celery. They are here to be compared, and need `pip install celery redis`."""
