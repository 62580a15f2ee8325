"""The embedded PostgreSQL server, used when no database is configured.

It is for development and tests. The first process that needs the server starts it, every other process of the same user
connects to it, and it keeps running when the first process ends. Its data survives restarts, crashes and kills, and is
never deleted without being asked to. Each project has a database of its own on it.

    from horsies import embedded

    server = embedded.ensure()
    connection = psycopg.connect(server.url)
"""

from horsies.embedded.databases import database_url, existing_database_url
from horsies.embedded.paths import home_directory
from horsies.embedded.server import Server, data_directory, ensure, status, stop

__all__ = [
    "Server",
    "data_directory",
    "database_url",
    "ensure",
    "existing_database_url",
    "home_directory",
    "status",
    "stop",
]
