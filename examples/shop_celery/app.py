"""The app that web processes and workers share."""

import os

from celery import Celery
from celery.schedules import crontab

redis = os.environ.get("REDIS_URL", "redis://localhost")
modules = ["shop_celery.mail", "shop_celery.thumbnails", "shop_celery.reports"]
app = Celery("shop", broker=redis, backend=redis, include=modules)
app.conf.timezone = "Europe/Berlin"
app.conf.task_routes = {"shop_celery.mail.send_mail": {"queue": "mail"}}
app.conf.beat_schedule = {
    "weekly_report": {
        "task": "shop_celery.reports.weekly_report",
        "schedule": crontab(minute=0, hour=8, day_of_week="mon"),
    }
}
