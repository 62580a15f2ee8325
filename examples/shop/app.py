"""The app that web processes and workers share."""

from horsies import AppConfig, Horsies

app = Horsies(AppConfig(queues=["mail"]))
app.discover_tasks(["shop.mail", "shop.thumbnails", "shop.reports"])
