"""What viewers are told when something cannot be shown or done: a sentence and a remedy, never a stack trace."""

from __future__ import annotations

import logging

import psycopg
from psycopg import errors

from horsies.errors import HorsiesError, mask_passwords
from horsies.storage.dashboard import READ_SECONDS
from horsies.storage.database import TRANSIENT

logger = logging.getLogger("horsies.web")


class Refusal(Exception):
    """Why a request is not answered, and what would help."""

    def __init__(self, status: int, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.remedy = remedy


def not_found(what: str) -> Refusal:
    return Refusal(404, f"There is no {what}.", "It may have been deleted when its time was over.")


def refusal_of(error: Exception) -> Refusal:
    """The error as viewers are told; what they cannot do anything about goes to the log in full."""
    match error:
        case Refusal():
            return error
        case errors.QueryCanceled():
            problem = f"The database did not find the answer within {READ_SECONDS} s."
            return Refusal(503, problem, "Ask for less: a shorter time, a queue, a task.")
        case errors.UndefinedTable() | errors.UndefinedColumn() | errors.UndefinedFunction():
            return Refusal(
                503,
                "The schema of the database is not the one that this dashboard needs.",
                "Run `horsies migrate`.",
            )
        case errors.InsufficientPrivilege():
            problem = f"The dashboard's role may not do this: {error.diag.message_primary}."
            return Refusal(403, problem, "Log in as horsies_viewer, or as horsies_operator for actions.")
        case HorsiesError():
            return Refusal(503, mask_passwords(error.message), error.help_text)
        case _ if isinstance(error, TRANSIENT):
            logger.warning("the database cannot be reached (%s)", type(error).__name__)
            return Refusal(
                503,
                "The database cannot be reached.",
                "The page comes back by itself when the database does.",
            )
        case psycopg.Error():
            logger.warning("the database refused a request: %s", mask_passwords(str(error)))
            return Refusal(
                500,
                f"The database refused the request ({type(error).__name__}).",
                "The dashboard's log has more.",
            )
        case _:
            logger.error("a request failed", exc_info=error)
            return Refusal(
                500, "The dashboard made a mistake.", "Its log has the details; please report them."
            )
