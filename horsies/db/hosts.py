"""Connection strings that name several hosts: the primary of a replicated PostgreSQL and its standbys.

libpq tries the hosts in order. Unless the URL says otherwise, only a server that accepts writes will do: a standby answers, too. A
host that is switched off does not refuse a connection, but lets it time out. So this process tries the host that worked last
first, and a host that has stopped answering last.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

# With several hosts, one that does not answer must not hold up the others for longer.
CONNECT_SECONDS: Final = 3
# With several hosts, a standby may be promoted at any moment, so tries to connect are not further apart.
LONGEST_PAUSE_MS: Final = 1_000

_LISTS = ("host", "hostaddr", "port")

Address = tuple[str, ...]

# The order in which this process tries the hosts of a connection string, if it is not that of the string.
_orders: dict[frozenset[Address], list[Address]] = {}


def are_several(url: str) -> bool:
    """Return True if a URL names more than one host; libpq reports a URL that cannot be read.

    >>> are_several("postgresql://db1,db2:5433/shop"), are_several("postgresql:///shop")
    (True, False)
    """
    try:
        return len(_addresses(conninfo_to_dict(url))) > 1
    except psycopg.ProgrammingError:
        return False


def arranged(url: str, connect_timeout: int, **settings: Any) -> str:
    """Return the connection string for a URL and settings.

    With several hosts, they are in the order in which to try them, and only a server that accepts writes is taken unless the
    URL has `target_session_attrs`; a `connect_timeout` in the URL counts for each host.
    """
    params = conninfo_to_dict(url, **settings)
    addresses = _addresses(params)
    if len(addresses) < 2:
        return make_conninfo("", **{**params, "connect_timeout": connect_timeout})
    defaults: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS}
    if "PGTARGETSESSIONATTRS" not in os.environ:
        defaults["target_session_attrs"] = "read-write"
    params = {**defaults, **params}
    order = _orders.get(_key(params, addresses), addresses)
    columns = zip(_names(params), zip(*order, strict=True), strict=True)
    lists = {name: ",".join(values) for name, values in columns}
    return make_conninfo("", **{**params, **lists})


def prefer(conninfo: str, host: str, port: int) -> None:
    """Try the host first from now on: it has just accepted a connection."""
    _move(conninfo, host, port, to_front=True)


def avoid(conninfo: str, host: str, port: int) -> None:
    """Try the host last from now on: it has stopped answering."""
    _move(conninfo, host, port, to_front=False)


def _move(conninfo: str, host: str, port: int, *, to_front: bool) -> None:
    params = conninfo_to_dict(conninfo)
    addresses = _addresses(params)
    if len(addresses) < 2:
        return
    names, key = _names(params), _key(params, addresses)
    order = _orders.get(key, addresses)
    chosen = [each for each in order if _is_at(dict(zip(names, each, strict=True)), host, port)]
    others = [each for each in order if each not in chosen]
    _orders[key] = [*chosen, *others] if to_front else [*others, *chosen]


def _names(params: Mapping[str, Any]) -> list[str]:
    """Return the parameters that list hosts."""
    return [name for name in _LISTS if params.get(name)]


def _addresses(params: Mapping[str, Any]) -> list[Address]:
    """Return host, address and port of each server, as far as they are given; none if libpq cannot match the lists."""
    lists = [str(params[name]).split(",") for name in _names(params)]
    count = max(map(len, lists), default=0)
    full = [
        values * count if len(values) == 1 else values for values in lists
    ]  # one port is that of all hosts
    return list(zip(*full, strict=True)) if all(len(values) == count for values in full) else []


def _key(params: Mapping[str, Any], addresses: list[Address]) -> frozenset[Address]:
    """Return the key of an order: what is the best host depends on the sessions that are wanted."""
    return frozenset([*addresses, ("target_session_attrs", str(params.get("target_session_attrs")))])


def _is_at(address: Mapping[str, str], host: str, port: int) -> bool:
    return host in (address.get("host"), address.get("hostaddr")) and (address.get("port") or "5432") == str(
        port
    )
