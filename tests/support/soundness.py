"""What the doctor says of a database when a test has done with it."""

from __future__ import annotations

import psycopg

from horsies.db.queries.doctor import INVARIANTS, Finding, Thresholds, findings, query


def ailments(url: str) -> list[Finding]:
    """The invariants that a database violates."""
    with psycopg.connect(url, autocommit=True, options="-c statement_timeout=10s") as connection:
        rows = connection.execute(query(INVARIANTS), Thresholds()._asdict()).fetchall()
    return findings(INVARIANTS, rows)
