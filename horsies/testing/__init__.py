"""Test code that sends tasks, on a real database and without a worker.

Tasks are stored, claimed, run and settled by the code that workers use, in the process of the test. So a test sees what production
does, and a debugger stops in a task.

>>> from horsies.testing import assert_enqueued, drain, travel
>>> def test_a_signup_sends_mail(horsies_bind):
...     app = horsies_bind(shop.app)
...     shop.sign_up("ann@example.org")
...     assert_enqueued(shop.send_mail, kwargs={"to": "ann@example.org"})
...     [ran] = drain(app)
...     assert ran.result.is_ok()

The fixtures `horsies_database_url` and `horsies_bind` come with the package's pytest plugin.
"""

from horsies.testing.crashes import CrashTestFailed, crash_test
from horsies.testing.databases import bound, fresh_database
from horsies.testing.runner import (
    Enqueued,
    Ran,
    assert_enqueued,
    drain,
    drain_async,
    enqueued,
    inline,
    travel,
)

__all__ = [
    "CrashTestFailed",
    "Enqueued",
    "Ran",
    "assert_enqueued",
    "bound",
    "crash_test",
    "drain",
    "drain_async",
    "enqueued",
    "fresh_database",
    "inline",
    "travel",
]
