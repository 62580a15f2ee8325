"""A workplace that the tests of one module share, on a database of its own, where sharing takes nothing from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from tests.support.servers import drop_database, named
from tests.support.soundness import ailments
from tests.support.workers import Workplace


@pytest.fixture(scope="module")
def shared_workplace(
    tmp_path_factory: pytest.TempPathFactory, server_url: str, template: str
) -> Iterator[Workplace]:
    """As `workplace`, for all tests of a module."""
    name = f"test_{uuid4().hex}"
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )
        try:
            url = named(server_url, name)
            with Workplace(tmp_path_factory.mktemp("workplace"), url) as place:
                yield place
            assert ailments(url) == []
        finally:
            drop_database(admin, name)


@pytest.fixture(scope="module")
def shared_db(shared_workplace: Workplace) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """As `db`, on the shared workplace's database."""
    with psycopg.connect(
        shared_workplace.database_url, autocommit=True, row_factory=psycopg.rows.dict_row
    ) as connection:
        yield connection
