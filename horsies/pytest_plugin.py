"""Fixtures for tests of code that sends tasks. Nothing is imported or started until a test uses one.

>>> @pytest.fixture
... def app(horsies_bind):
...     return horsies_bind(shop.app)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from horsies.registry import TaskRegistry

App = TypeVar("App", bound="TaskRegistry")


@pytest.fixture(scope="session")
def horsies_server_url() -> str:
    """Return the URL of the server for test databases; override it to use your own."""
    from horsies.testing import databases

    return databases.server_url()


@pytest.fixture
def horsies_database_url(horsies_server_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Create a migrated database for one test, set HORSIES_DATABASE_URL to it, and drop it afterwards."""
    from horsies.testing import fresh_database

    with fresh_database(horsies_server_url) as url:
        monkeypatch.setenv("HORSIES_DATABASE_URL", url)
        yield url


@pytest.fixture
def horsies_bind(horsies_database_url: str) -> Iterator[Callable[[App], App]]:
    """Return a function that binds an app to the test's database until the test ends, and returns the app."""
    from horsies.testing import bound

    with ExitStack() as stack:
        yield lambda app: stack.enter_context(bound(app, horsies_database_url))
