"""What is used of Django's tasks, from wherever this Django has them: Django 6 itself, or the package django-tasks before."""

# pyright: reportMissingTypeStubs=false
# Django is not typed.

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from horsies.errors import ConfigurationError, ErrorCode

if TYPE_CHECKING or find_spec("django.tasks") is None:
    try:
        from django_tasks import exceptions, signals
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskContext, TaskResult, TaskResultStatus
        from django_tasks.base import TaskError as AttemptError
    except ImportError as error:
        raise ConfigurationError(
            "this Django has no tasks",
            code=ErrorCode.EXTRA_NOT_INSTALLED,
            help_text="use Django 6 or later, or install the package django-tasks",
        ) from error
else:
    from django.tasks import exceptions, signals
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskResult, TaskResultStatus
    from django.tasks.base import TaskError as AttemptError

__all__ = [
    "AttemptError",
    "BaseTaskBackend",
    "Task",
    "TaskContext",
    "TaskResult",
    "TaskResultStatus",
    "exceptions",
    "signals",
]
