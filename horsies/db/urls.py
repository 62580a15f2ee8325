"""Build database URLs that every driver understands in the same way."""

from __future__ import annotations

from urllib.parse import quote, unquote

from psycopg.conninfo import conninfo_to_dict


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


def read_only(url: str) -> str:
    """Return the URL of the same database, in whose sessions nothing can be written.

    >>> read_only("postgresql://ann@db/shop")
    'postgresql://ann@db/shop?options=-c%20default_transaction_read_only%3Don'
    """
    known = conninfo_to_dict(url).get("options")
    options = f"{known or ''} -c default_transaction_read_only=on".strip()
    # Of a parameter that a URL has twice, libpq takes the last.
    return f"{url}{'&' if '?' in url else '?'}options={quote(options, safe='')}"
