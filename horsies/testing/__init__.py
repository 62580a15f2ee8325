"""Test code that sends tasks, on a real database and without a worker.

Tasks are stored, claimed, run and ended by the code that workers use; only the process is the test's own. So what a test
sees is what production does, and a debugger stops in a task.

>>> from horsies.testing import assert_enqueued, drain, travel
>>> def test_a_signup_sends_mail(horsies_bind):
...     app = horsies_bind(shop.app)
...     shop.sign_up("ann@example.org")
...     assert_enqueued(shop.send_mail, kwargs={"to": "ann@example.org"})
...     [ran] = drain(app)
...     assert ran.result.is_ok()

The fixtures `horsies_database_url` and `horsies_bind` come with the package's pytest plugin.
"""

from horsies.testing.clock import travel
from horsies.testing.databases import bound, fresh_database
from horsies.testing.looking import Enqueued, assert_enqueued, enqueued
from horsies.testing.running import Ran, drain, drain_async, inline

__all__ = [
    "Enqueued",
    "Ran",
    "assert_enqueued",
    "bound",
    "drain",
    "drain_async",
    "enqueued",
    "fresh_database",
    "inline",
    "travel",
]
