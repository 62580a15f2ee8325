"""The app that `manage.py horsies worker` runs: that of the default backend, with the `tasks` module of every installed app.

It sets Django up by itself, since the processes of a worker import it anew.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Django is not typed.

from __future__ import annotations

import django
from django.apps import apps
from django.conf import settings
from django.utils.module_loading import autodiscover_modules

from horsies.integrations.django.queue import queue_of

if not apps.ready:
    django.setup()
autodiscover_modules("tasks")
_default = settings.TASKS["default"]
app = queue_of("default", set(_default.get("QUEUES", ["default"])), _default.get("OPTIONS", {})).app
