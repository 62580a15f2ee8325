"""Build database URLs that every driver understands in the same way."""

from __future__ import annotations

from urllib.parse import quote, unquote


def with_database(url: str, name: str) -> str:
    """Return the URL of another database on the same server.

    The name is written into the path. libpq also accepts it as a parameter, but asyncpg, SQLAlchemy and Django then
    connect to the database of the path. So a parameter `dbname` is removed.

    >>> with_database("postgresql://ann@db:5433/postgres?sslmode=require&dbname=old", "shop")
    'postgresql://ann@db:5433/shop?sslmode=require'
    >>> with_database("postgresql:///?host=/run/postgresql", "shop")
    'postgresql:///shop?host=/run/postgresql'
    """
    scheme, _, rest = url.partition("://")
    place, _, parameters = rest.partition("?")
    server = place.partition("/")[0]
    kept = [each for each in parameters.split("&") if each and unquote(each.partition("=")[0]) != "dbname"]
    return f"{scheme}://{server}/{quote(name, safe='')}{'?' if kept else ''}{'&'.join(kept)}"
