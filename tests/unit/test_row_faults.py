"""Errors that a row causes by its content are told from those of the server, the network and the schema."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import psycopg
import pytest
from psycopg import errors

from horsies.db.connection import is_row_fault
from horsies.quarantine import RowFault, isolate


@pytest.mark.parametrize(
    "error",
    [
        errors.UniqueViolation("duplicate key"),
        errors.NumericValueOutOfRange("integer out of range"),
        errors.StatementTooComplex("stack depth limit exceeded"),
        errors.RaiseException("a trigger of the user's"),
        psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"),
        msgspec.DecodeError("Input data was truncated"),
        RecursionError("maximum recursion depth exceeded"),
        LookupError("workflow 1 has no node 7"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_the_content_of_a_row_causes_is_its_fault(error: Exception) -> None:
    assert is_row_fault(error)


@pytest.mark.parametrize(
    "error",
    [
        psycopg.OperationalError("the connection is lost"),
        errors.AdminShutdown("terminating connection"),
        errors.DeadlockDetected("deadlock detected"),
        errors.QueryCanceled("canceling statement due to statement timeout"),
        errors.DiskFull("no space left on device"),
        errors.InsufficientPrivilege("permission denied"),
        errors.UndefinedTable("relation does not exist"),
        errors.InvalidSqlStatementName("prepared statement does not exist"),
        TimeoutError(),
        ConnectionResetError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_the_server_the_network_or_the_schema_causes_is_no_rows_fault(error: Exception) -> None:
    assert not is_row_fault(error)


async def _double(rows: Sequence[int]) -> list[int]:
    if 0 in rows:
        raise errors.NumericValueOutOfRange("integer out of range")
    return [2 * row for row in rows]


async def _park(row: int, reason: str) -> list[int]:
    assert reason == "NumericValueOutOfRange: integer out of range"
    return [-1]


def test_rows_are_acted_on_together_while_none_is_at_fault() -> None:
    assert asyncio.run(isolate([1, 2, 3], _double, _park)) == [[2, 4, 6]]


def test_a_row_at_fault_is_parked_and_the_others_are_acted_on_alone() -> None:
    assert asyncio.run(isolate([1, 0, 3], _double, _park)) == [[2], [-1], [6]]


def test_an_error_that_no_row_has_caused_is_raised_and_parks_nothing() -> None:
    async def lose(rows: Sequence[int]) -> list[int]:
        raise psycopg.OperationalError("the connection is lost")

    with pytest.raises(psycopg.OperationalError):
        asyncio.run(isolate([1, 0], lose, _park))


def test_a_cancelled_task_is_no_rows_fault() -> None:
    with pytest.raises(asyncio.CancelledError), RowFault():
        raise asyncio.CancelledError
