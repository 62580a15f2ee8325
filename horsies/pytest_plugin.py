"""Fixtures for tests of code that sends tasks. Nothing is imported, started or changed until a test asks for one.

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
    """The server on which databases for tests are made; override it to use one of your own."""
    from horsies.testing import databases

    return databases.server_url()


@pytest.fixture
def horsies_database_url(horsies_server_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A database of this test's own with the schema in it; HORSIES_DATABASE_URL names it meanwhile."""
    from horsies.testing import fresh_database

    with fresh_database(horsies_server_url) as url:
        monkeypatch.setenv("HORSIES_DATABASE_URL", url)
        yield url


@pytest.fixture
def horsies_bind(horsies_database_url: str) -> Iterator[Callable[[App], App]]:
    """A function that binds an app to this test's database until the test ends, and gives it back."""
    from horsies.testing import bound

    with ExitStack() as until_the_end:
        yield lambda app: until_the_end.enter_context(bound(app, horsies_database_url))
