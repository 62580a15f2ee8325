"""The app that `manage.py horsies worker` runs: the default backend's, with the `tasks` module of every installed app.

It calls `django.setup` itself, because every process of a worker imports it.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# Django is not typed.

from __future__ import annotations

import django
from django.apps import apps
from django.conf import settings
from django.utils.module_loading import autodiscover_modules

from horsies.integrations.django.backend import HorsiesBackend

if not apps.ready:
    django.setup()
autodiscover_modules("tasks")
app = HorsiesBackend("default", settings.TASKS["default"]).app
