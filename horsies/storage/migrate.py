"""Bring a database to the schema that this version of the code needs.

Migrations are numbered SQL files, applied in one transaction under an advisory lock: any number of processes may
start at once, one migrates, the rest find the work done. A schema newer than the code is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

from psycopg import IsolationLevel, errors, sql

from horsies.config import PostgresConfig
from horsies.errors import DatabaseError, ErrorCode, mask_passwords
from horsies.storage.database import Connection, connect

OLDEST_SERVER = 130000
# Any fixed number will do, as long as no other application takes the same advisory lock for long.
LOCK_KEY = 7_240_118_053

_PROLOGUE = """\
-- The functions keep this search path, so that nobody's tables of the same name can step in between.
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
CREATE TABLE IF NOT EXISTS horsies_schema_version (
    version    integer     PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
);
"""

_ROLE = re.compile(r"\bhorsies_(producer|worker|scheduler|viewer|operator)\b")


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    sql: str


def _load() -> tuple[Migration, ...]:
    found = (f for f in files("horsies.storage").joinpath("migrations").iterdir() if f.name.endswith(".sql"))
    return tuple(
        Migration(int(f.name.split("_")[0]), f.name, f.read_text(encoding="utf-8"))
        for f in sorted(found, key=lambda f: f.name)
    )


MIGRATIONS = _load()
LATEST = MIGRATIONS[-1].version


async def installed_version(connection: Connection) -> int:
    """The newest migration that the database has; 0 for an empty one."""
    exists = await (await connection.execute("SELECT to_regclass('horsies_schema_version')")).fetchone()
    if exists is None or exists[0] is None:
        return 0
    return await _recorded_version(connection)


async def _recorded_version(connection: Connection) -> int:
    row = await (await connection.execute("SELECT max(version) FROM horsies_schema_version")).fetchone()
    return 0 if row is None or row[0] is None else int(row[0])


def script(after: int = 0) -> str:
    """The migrations after a version as one SQL script, for people who apply schemas with a tool of their own."""
    parts = ["BEGIN;", f"SELECT pg_advisory_xact_lock({LOCK_KEY});", _PROLOGUE]
    for migration in MIGRATIONS:
        if migration.version > after:
            parts += [
                f"-- {migration.name}",
                migration.sql,
                f"INSERT INTO horsies_schema_version (version) VALUES ({migration.version});",  # noqa: S608  our own number
            ]
    return "\n".join([*parts, "COMMIT;", ""])


def roles_script(prefix: str = "horsies_") -> str:
    """The roles that producers, workers and people need, as an SQL script; their names begin with the prefix."""
    text = files("horsies.storage").joinpath("roles.sql").read_text(encoding="utf-8")
    return _ROLE.sub(rf"{prefix}\1", text)


async def migrate(config: PostgresConfig) -> int:
    """Create or upgrade the schema; gives back how many migrations were applied."""
    async with await connect(config, session=True, name="horsies-migrate") as connection:
        if connection.info.server_version < OLDEST_SERVER:
            raise DatabaseError(
                f"the server at {mask_passwords(config.conninfo)} is PostgreSQL {connection.info.server_version // 10000}",
                code=ErrorCode.BROKER_INIT_FAILED,
                help_text="horsies needs PostgreSQL 13 or later",
            )
        try:
            if _checked(await installed_version(connection)) == LATEST:
                return 0
            return await _apply(connection)
        # Without the right to use any schema of the search path there is none to create in.
        except (errors.InsufficientPrivilege, errors.InvalidSchemaName) as error:
            raise DatabaseError(
                f"no permission to create the schema at {mask_passwords(config.conninfo)}: {error.diag.message_primary}",
                code=ErrorCode.SCHEMA_PERMISSION,
                help_text="run `horsies migrate` as the database's owner, or hand `horsies migrate --sql` to one; "
                "`horsies migrate --roles` prints what others need to use it",
            ) from error


def _checked(version: int) -> int:
    if version > LATEST:
        raise DatabaseError(
            f"the database has schema version {version}, this horsies knows {LATEST} at most",
            code=ErrorCode.SCHEMA_TOO_NEW,
            help_text="upgrade horsies here before you start it; a newer version has migrated this database",
        )
    return version


async def _apply(connection: Connection) -> int:
    await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK_KEY,))
        # Asking whether the table exists is not enough here: a session that saw none before it waited for the lock
        # goes on seeing none until it opens a table.
        await connection.execute(_PROLOGUE)
        version = _checked(await _recorded_version(connection))
        missing = [migration for migration in MIGRATIONS if migration.version > version]
        for migration in missing:
            await connection.execute(sql.SQL(migration.sql))  # pyright: ignore[reportArgumentType]  (our own file)
            await connection.execute(
                "INSERT INTO horsies_schema_version (version) VALUES (%s)", (migration.version,)
            )
    return len(missing)
