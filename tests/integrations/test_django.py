"""Django's tasks in horsies workers: a project of the test's own, as its manage.py runs it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
from psycopg.conninfo import conninfo_to_dict

from horsies.db.connection import connection_string
from horsies.errors import ConfigurationError
from tests.support.workers import Workplace

SETTINGS = """
from urllib.parse import urlsplit

url = urlsplit(os.environ["HORSIES_DATABASE_URL"])
SECRET_KEY = "for tests"
USE_TZ = True
INSTALLED_APPS = ["shop", "horsies.integrations.django"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.path[1:],
        "USER": url.username,
        "PASSWORD": url.password,
        "HOST": url.hostname,
        "PORT": url.port,
        "OPTIONS": {"application_name": "the shop"},
    },
    "small": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
TASKS = {
    "default": {
        "BACKEND": "horsies.integrations.django.backend.HorsiesBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"schema": os.environ.get("SHOP_SCHEMA")},
    }
}
"""

TASKS = """
from {tasks} import task

@task(takes_context=True, queue_name="mail", priority=20)
def greet(context, name, *, polite=False):
    from django.db import connection
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('application_name')")
        return [name, polite, context.attempt, cursor.fetchone()[0]]

@task
async def refuse(reason):
    raise ValueError(reason)
"""

MANAGE = """
os.environ["DJANGO_SETTINGS_MODULE"] = "project"
from django.core.management import execute_from_command_line
if __name__ == "__main__":
    execute_from_command_line(sys.argv)
"""

# Sends as a view would, and tells what it has seen.
STORY = """
os.environ["DJANGO_SETTINGS_MODULE"] = "project"
import django
django.setup()
from django.db import transaction
from django.utils import timezone
from shop.tasks import greet, refuse

def ended(result):
    while not result.is_finished:
        time.sleep(0.01)
        result.refresh()
    return result

with transaction.atomic():
    greeted = greet.enqueue("Ann", polite=True)
try:
    with transaction.atomic():
        undone = greet.enqueue("Bob")
        raise LookupError
except LookupError:
    pass
refused = ended(refuse.using(priority=-100).enqueue("closed"))
later = greet.using(run_after=timezone.now() + timedelta(hours=1)).enqueue("Cid")
gone = None
try:
    greet.get_result(undone.id)
except Exception as error:
    gone = type(error).__name__
greeted = ended(greet.get_result(greeted.id))
later = greet.get_result(later.id)
from horsies.integrations.django.backend import HorsiesBackend
wrong = HorsiesBackend("wrong", {"OPTIONS": {"database": "small"}})
print(json.dumps({
    "value": greeted.return_value, "args": greeted.args, "kwargs": greeted.kwargs, "attempts": greeted.attempts,
    "undone": gone, "refused": [refused.status, refused.errors[0].exception_class_path, refused.errors[0].traceback],
    "later": [later.status, later.attempts], "wrong": [problem.msg for problem in wrong.check()],
}))
"""


@pytest.mark.parametrize("schema", [None, "jobs"])
def test_a_task_of_djangos_is_written_in_its_transaction_and_run_by_a_worker(
    workplace: Workplace, db, schema: str | None
) -> None:
    if schema is not None:
        workplace.env["SHOP_SCHEMA"] = schema
        db.execute(f"SET search_path = {schema}")
    (workplace.folder / "shop").mkdir()
    (workplace.folder / "shop" / "__init__.py").touch()
    workplace.write(
        TASKS.format(tasks="django.tasks" if find_spec("django.tasks") else "django_tasks"), "shop/tasks.py"
    )
    workplace.write(SETTINGS, "project.py")
    workplace.write(MANAGE, "manage.py")
    workplace.write(STORY, "story.py")
    worker = workplace.manage("--processes=1", "--async-processes=1")

    told = subprocess.run(
        [sys.executable, "story.py"],
        cwd=workplace.folder,
        env=workplace.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.returncode == 0, told.stderr + worker.log
    story = json.loads(told.stdout)
    assert story["value"] == ["Ann", True, 1, "the shop"]
    assert (story["args"], story["kwargs"], story["attempts"]) == (["Ann"], {"polite": True}, 1)
    assert story["undone"] == "TaskResultDoesNotExist"
    status, error, traceback = story["refused"]
    assert (status, error) == ("FAILED", "builtins.ValueError")
    assert "closed" in traceback
    assert story["later"] == ["READY", 0]
    assert story["wrong"] == ["the task backend 'wrong' is on the database 'small', which is sqlite"]
    queued = {row["task_name"]: row for row in db.execute("SELECT * FROM horsies_tasks").fetchall()}
    assert (queued["shop.tasks.greet"]["queue_name"], queued["shop.tasks.greet"]["priority"]) == ("mail", 40)
    assert queued["shop.tasks.refuse"]["priority"] == 100


def test_a_django_without_tasks_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "django_tasks", None)
    monkeypatch.delitem(sys.modules, "horsies.integrations.django.backend", raising=False)

    with pytest.raises(ConfigurationError, match=r"this Django has no tasks") as refused:
        importlib.import_module("horsies.integrations.django.backend")

    assert refused.value.code == "HRS-219"
    assert "django-tasks" in str(refused.value)


def test_the_servers_of_a_database_of_djangos_are_all_used() -> None:
    backend = pytest.importorskip("horsies.integrations.django.backend", exc_type=ImportError)
    url = backend.database_url(
        {
            "NAME": "shop",
            "USER": "ann",
            "HOST": "db1,db2",
            "PORT": "5432,5433",
            "OPTIONS": {"target_session_attrs": "any", "pool": True},
        }
    )

    found = conninfo_to_dict(connection_string(url))

    assert (found["host"], found["port"]) == ("db1,db2", "5432,5433")
    assert found["target_session_attrs"] == "any"
    assert found["dbname"] == "shop"
