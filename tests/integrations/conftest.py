"""One worker and one database for all tests of a module."""

from __future__ import annotations

from tests.e2e.conftest import shared_db, shared_workplace

__all__ = ["shared_db", "shared_workplace"]
