"""A PostgreSQL server of our own when no database is configured.

For development and tests. The first process that needs it starts it, every other process of the
same user attaches, and it outlives whoever started it. Its data survives restarts, crashes and
kills; nothing a user put there is ever deleted.

    from horsies import embedded

    server = embedded.ensure()
    connection = psycopg.connect(server.url)
"""

from horsies.embedded.server import Server, data_directory, ensure, status, stop
from horsies.embedded.site import home_directory

__all__ = ["Server", "data_directory", "ensure", "home_directory", "status", "stop"]
