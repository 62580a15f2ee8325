"""Bring a database to the schema that this version of the code needs.

Migrations are numbered SQL files, applied in one transaction under an advisory lock: any number of processes may
start at once, one migrates, the rest find the schema up to date. A schema newer than the code is rejected.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

from psycopg import IsolationLevel, errors, sql

from horsies.config import PostgresConfig
from horsies.db.connection import Connection, connect, quoted, search_path
from horsies.errors import DatabaseError, ErrorCode, mask_passwords

OLDEST_SERVER = 130000
# Any fixed number will do, as long as no other application takes the same advisory lock for long.
LOCK_KEY = 7_240_118_053

# The functions keep this search path, so that a table of the same name in another schema cannot shadow ours.
_SEARCH_PATH = "SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);"
_VERSIONS = """\
CREATE TABLE IF NOT EXISTS horsies_schema_version (
    version    integer     PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
);
"""

# `CREATE SCHEMA IF NOT EXISTS` needs the privilege to create even if the schema exists.
_CREATE_SCHEMA = """
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = {0}) THEN
        EXECUTE pg_catalog.format('CREATE SCHEMA %I', {0}::text);
    -- PostgreSQL skips a schema that the role may not use: the tables would become temporary ones.
    ELSIF NOT pg_catalog.has_schema_privilege({0}, 'USAGE') THEN
        RAISE insufficient_privilege USING MESSAGE = pg_catalog.format('permission denied for schema %I', {0}::text);
    END IF;
END
"""

_ROLE = re.compile(r"\bhorsies_(producer|worker|scheduler|viewer|operator)\b")


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    sql: str


def _load() -> tuple[Migration, ...]:
    found = (f for f in files("horsies.db").joinpath("schema").iterdir() if f.name[:4].isdigit())
    return tuple(
        Migration(int(f.name.split("_")[0]), f.name, f.read_text(encoding="utf-8"))
        for f in sorted(found, key=lambda f: f.name)
    )


MIGRATIONS = _load()
LATEST = MIGRATIONS[-1].version


async def installed_version(connection: Connection) -> int:
    """Return the version of the newest applied migration; 0 for an empty database."""
    exists = await (await connection.execute("SELECT to_regclass('horsies_schema_version')")).fetchone()
    if exists is None or exists[0] is None:
        return 0
    return await _recorded_version(connection)


async def _recorded_version(connection: Connection) -> int:
    row = await (await connection.execute("SELECT max(version) FROM horsies_schema_version")).fetchone()
    return 0 if row is None or row[0] is None else int(row[0])


def script(after: int = 0, schema: str | None = None) -> str:
    """Return the migrations after a version as one SQL script, for people who apply schemas with another tool."""
    parts = ["BEGIN;", f"SELECT pg_advisory_xact_lock({LOCK_KEY});"]
    parts += _prologue(schema)
    for migration in MIGRATIONS:
        if migration.version > after:
            parts += [
                f"-- {migration.name}",
                migration.sql,
                f"INSERT INTO horsies_schema_version (version) VALUES ({migration.version});",  # noqa: S608  our own number
            ]
    return "\n".join([*parts, "COMMIT;", ""])


def roles_script(prefix: str = "horsies_", schema: str | None = None) -> str:
    """Return an SQL script with the roles of producers, workers and people; the prefix begins their names."""
    text = files("horsies.db").joinpath("schema", "roles.sql").read_text(encoding="utf-8")
    before, path, after = _ROLE.sub(rf"{prefix}\1", text).partition(_SEARCH_PATH)
    return before + (path if schema is None else f"{search_path(schema, local=True)};") + after


def _prologue(schema: str | None) -> list[str]:
    """Return the statements before the migrations: the schema, the search path and the table of versions."""
    if schema is None:
        return [_SEARCH_PATH, _VERSIONS]
    create = f"DO {_literal(_CREATE_SCHEMA.format(_literal(schema)))};"
    return [create, f"{search_path(schema, local=True)};", _VERSIONS]


def _literal(text: str) -> str:
    return sql.Literal(text).as_string(None).strip()


async def migrate(config: PostgresConfig) -> int:
    """Create or upgrade the schema and return how many migrations were applied."""
    async with await connect(config, session=True, name="horsies-migrate") as connection:
        if connection.info.server_version < OLDEST_SERVER:
            raise DatabaseError(
                f"the server at {mask_passwords(config.conninfo)} is PostgreSQL {connection.info.server_version // 10000}",
                code=ErrorCode.BROKER_INIT_FAILED,
                help_text="horsies needs PostgreSQL 13 or later",
            )
        try:
            if _check_version(await installed_version(connection)) == LATEST:
                return 0
            return await _apply(connection, config.schema)
        # InvalidSchemaName: the role may use no schema of the search path.
        except (errors.InsufficientPrivilege, errors.InvalidSchemaName) as error:
            raise DatabaseError(
                f"no permission to create the schema at {mask_passwords(config.conninfo)}: {error.diag.message_primary}",
                code=ErrorCode.SCHEMA_PERMISSION,
                help_text=_remedy(config.schema, connection.info.user),
            ) from error


def _remedy(schema: str | None, user: str) -> str:
    create = (
        ""
        if schema is None
        else f"have the database's owner run CREATE SCHEMA {quoted(schema)} AUTHORIZATION {quoted(user)}; or "
    )
    return (
        f"{create}run `horsies migrate` as the database's owner, or hand `horsies migrate --sql` to one; "
        "`horsies migrate --roles` prints what others need to use it"
    )


def _check_version(version: int) -> int:
    if version > LATEST:
        raise too_new(version)
    return version


def too_new(version: int) -> DatabaseError:
    """Return the error for a schema that a newer version of horsies has made."""
    return DatabaseError(
        f"the database has schema version {version}, this horsies knows {LATEST} at most",
        code=ErrorCode.SCHEMA_TOO_NEW,
        help_text="upgrade horsies here before you start it; a newer version has migrated this database",
    )


async def _apply(connection: Connection, schema: str | None) -> int:
    await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK_KEY,))
        # Checking again whether the table exists is not enough here: a session that saw no table before it waited for
        # the lock sees none until it opens a table.
        for statement in _prologue(schema):
            await connection.execute(statement.encode())
        version = _check_version(await _recorded_version(connection))
        missing = [migration for migration in MIGRATIONS if migration.version > version]
        for migration in missing:
            await connection.execute(sql.SQL(migration.sql))  # pyright: ignore[reportArgumentType]  (our own file)
            await connection.execute(
                "INSERT INTO horsies_schema_version (version) VALUES (%s)", (migration.version,)
            )
    return len(missing)
