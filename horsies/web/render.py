"""Templates, and how things are written on pages. Everything is escaped; only our own templates write markup."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any
from urllib.parse import urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from horsies.spans import span

FRAGMENT = "x-horsies-fragment"


def number(value: float | None) -> str:
    """A number with its thousands apart.

    >>> number(1234567), number(0.25), number(None)
    ('1,234,567', '0.25', '–')
    """
    if value is None:
        return "–"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if value >= 10 else f"{value:.2g}"


def short(value: float) -> str:
    """A number for the side of a plot.

    >>> short(250), short(10_000), short(2_500_000)
    ('250', '10k', '2.5M')
    """
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return number(value)


def ago(moment: datetime | None, now: datetime | None = None) -> str:
    """How long ago a moment was, or how far it is away."""
    if moment is None:
        return "–"
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def took(began: datetime | None, ended: datetime | None) -> str:
    return "–" if began is None or ended is None else span(max(0.0, (ended - began).total_seconds()))


def moment(at: datetime | None) -> str:
    """A moment to the millisecond, in UTC."""
    return "–" if at is None else at.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds")[:23] + " UTC"


def clock(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%H:%M:%S")


def pretty(text: str | None) -> str:
    """Stored JSON indented; what is none as it is."""
    if text is None:
        return ""
    try:
        return json.dumps(msgspec.json.decode(text), indent=2, ensure_ascii=False)
    except (msgspec.DecodeError, ValueError):
        return text


def query(values: dict[str, Any], **changes: Any) -> str:
    """A query string with some values changed; what is None or empty is left out."""
    kept = {name: value for name, value in {**values, **changes}.items() if value not in (None, "")}
    return f"?{urlencode(kept)}" if kept else "?"


ENVIRONMENT = Environment(
    loader=PackageLoader("horsies.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters.update(
    number=number, short=short, ago=ago, moment=moment, clock=clock, pretty=pretty, span=span, json=json.dumps
)
_HELPERS: dict[str, Any] = {
    "took": took,
    "query": query,
    "version": version("horsies"),
    "now": lambda: datetime.now(UTC),
}
ENVIRONMENT.globals.update(_HELPERS)


def page(request: Request, template: str, context: dict[str, Any], status: int = 200) -> HTMLResponse:
    """A page in its layout, or only what is new of it when a page that is open asks."""
    values = {
        "base": request.scope.get("root_path", ""),
        "is_fragment": FRAGMENT in request.headers,
        "viewer": request.scope.get("horsies.viewer"),
        **context,
    }
    return HTMLResponse(ENVIRONMENT.get_template(template).render(values), status)
