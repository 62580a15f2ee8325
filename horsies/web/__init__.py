"""The dashboard: pages, a JSON API and metrics, as an ASGI app of its own or mounted in another."""

from horsies.web.dashboard import create_dashboard

__all__ = ["create_dashboard"]
