"""The plugin's own fixtures, as a project uses them; only the server is that of this run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from horsies import Horsies
from tests.testing import shop


@pytest.fixture(scope="session")
def horsies_server_url(server_url: str) -> str:
    return server_url


@pytest.fixture
def app(horsies_bind: Callable[[Horsies], Horsies]) -> Horsies:
    shop.seen.clear()
    return horsies_bind(shop.app)
