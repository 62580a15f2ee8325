"""`manage.py horsies …`: the horsies command for this project, such as `manage.py horsies worker --processes 4`."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# Django is not typed.

from __future__ import annotations

import os
from typing import Any

from django.core.management.base import BaseCommand

from horsies.cli import horsies

LOCATOR = "horsies.integrations.django.worker:app"


class Command(BaseCommand):
    """Hands everything behind its name to the horsies command."""

    help = "The horsies command, for the tasks of this project."

    def run_from_argv(self, argv: list[str]) -> None:
        os.environ.setdefault("HORSIES_APP", LOCATOR)
        horsies(argv[2:], prog_name="manage.py horsies")

    def handle(self, *args: Any, **_: Any) -> None:
        raise NotImplementedError("run it as a command, or call horsies.cli.horsies")
