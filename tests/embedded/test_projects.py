"""Each project has a database of its own on the embedded server, and all of its processes find it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from horsies import embedded
from horsies.config import AppConfig
from horsies.errors import HorsiesError
from horsies.project import database_name, is_database_name, project_folder
from tests.support.waiting import eventually

TASKS = """
from horsies import Horsies, TaskError, TaskResult

app = Horsies()

@app.task("whoami")
def whoami() -> TaskResult[str, TaskError]:
    return TaskResult(ok={name!r})
"""
SEND = "from {module} import whoami; print(whoami.send().unwrap().task_id)"
VARIABLES = ("HORSIES_DATABASE_URL", "DATABASE_URL", "HORSIES_APP", "HORSIES_EMBEDDED_DATABASE")


class Project:
    """A folder with an app, and commands that are run somewhere in it."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.home = home
        self.env = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        self.env |= {"HORSIES_HOME": str(home), "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(folder / "src")}
        (folder / "src" / "shop").mkdir(parents=True)
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "pyproject.toml").touch()
        (folder / "src" / "shop" / "__init__.py").touch()
        (folder / "src" / "shop" / "tasks.py").write_text(TASKS.format(name=folder.name))

    @property
    def database(self) -> str:
        return database_name(self.folder)

    def run(self, *words: str, cwd: Path | str = ".") -> subprocess.CompletedProcess[str]:
        """Run Python in the project, or in another folder."""
        done = subprocess.run(
            [sys.executable, *words], cwd=self.folder / cwd, env=self.env, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done

    def refused(self, *words: str, cwd: Path | str = ".") -> str:
        """Run a command that fails, and return what it says."""
        done = subprocess.run(
            [sys.executable, "-m", "horsies", *words], cwd=self.folder / cwd, env=self.env, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (1, ""), done
        return done.stderr

    def send(self, cwd: Path | str = ".") -> str:
        return self.run("-c", SEND.format(module="shop.tasks"), cwd=cwd).stdout.strip()

    def tasks(self, *words: str, cwd: Path | str = ".") -> set[str]:
        """Return what `horsies tasks` lists."""
        done = self.run("-m", "horsies", "tasks", "--json", *words, cwd=cwd)
        return {task["task_id"] for task in json.loads(done.stdout)["tasks"]}

    def start(self, *words: str, cwd: Path | str = ".") -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "horsies", *words], cwd=self.folder / cwd, env=self.env, stdout=log, stderr=log
            )  # fmt: skip

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture
def make_project(
    shared_home: Path, shared: embedded.Server, tmp_path: Path
) -> Iterator[Callable[[str], Project]]:
    made: list[Project] = []

    def make(name: str) -> Project:
        made.append(Project(tmp_path / name, shared_home))
        return made[-1]

    yield make
    with psycopg.connect(shared.url, autocommit=True) as admin:
        for project in made:
            admin.execute(f'DROP DATABASE IF EXISTS "{project.database}" WITH (FORCE)'.encode())


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait(30)


def test_two_projects_do_not_see_each_others_tasks_and_their_workers_run_their_own(
    make_project: Callable[[str], Project],
) -> None:
    shop, bank = make_project("a/shop"), make_project("b/shop")
    worker = bank.start("worker", "shop.tasks:app", "--processes=1")
    try:
        in_shop, in_bank = shop.send(), bank.send()
        result = bank.run(
            "-c", f"from shop.tasks import app; print(app.handle('{in_bank}').get(30_000).unwrap())"
        )
    finally:
        stop(worker)

    assert shop.database != bank.database
    assert result.stdout == "shop\n"
    assert (shop.tasks(), bank.tasks()) == ({in_shop}, {in_bank})
    assert f"Using the database {bank.database} on the embedded PostgreSQL" in bank.log


def test_all_processes_of_a_project_agree_wherever_they_are_started(
    make_project: Callable[[str], Project], tmp_path: Path
) -> None:
    shop = make_project("shop")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    locator = str(shop.folder / "src" / "shop" / "tasks.py") + ":app"
    sent = {shop.send(), shop.send(cwd="deep/er"), shop.send(cwd=elsewhere), shop.send(cwd="src/shop")}

    assert len(sent) == 4
    assert shop.tasks() == shop.tasks(cwd="deep/er") == shop.tasks(cwd="src/shop") == sent
    assert shop.tasks("--app", locator, cwd=elsewhere) == sent
    url = shop.run("-m", "horsies", "db", "url", cwd="deep").stdout.strip()
    assert urlsplit(url).path == f"/{shop.database}"
    assert f"/{shop.database}" in shop.run("-m", "horsies", "db", "status", cwd="deep/er").stdout
    assert shop.run("-m", "horsies", "check", "shop.tasks:app", "--live", cwd=elsewhere).returncode == 0


@pytest.mark.parametrize("words", [("shop.tasks:app",), ()], ids=["with the app", "without an app"])
def test_the_dashboard_shows_the_tasks_of_its_project(
    make_project: Callable[[str], Project], words: tuple[str, ...]
) -> None:
    pytest.importorskip("uvicorn")
    shop = make_project("shop")
    task_id = shop.send()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = shop.start("web", *words, f"--port={port}", cwd="deep")
    pages: list[str] = []

    def is_up() -> bool:
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/tasks", timeout=30) as page,
        ):
            pages.append(page.read().decode())
        return bool(pages)

    try:
        eventually(is_up, what="the dashboard being up")
    finally:
        stop(server)
    assert task_id in pages[0]


def test_a_new_database_is_announced_once_and_the_old_shared_one_is_named(
    make_project: Callable[[str], Project], shared: embedded.Server
) -> None:
    shop = make_project("shop")
    with psycopg.connect(shared.url) as connection:
        connection.execute("CREATE TABLE horsies_tasks (id int)")
    try:
        first = shop.run("-c", SEND.format(module="shop.tasks")).stderr
        second = shop.run("-c", SEND.format(module="shop.tasks")).stderr
    finally:
        with psycopg.connect(shared.url) as connection:
            connection.execute("DROP TABLE horsies_tasks")

    assert f"created the database {shop.database}" in first
    assert "HORSIES_EMBEDDED_DATABASE=postgres uses it" in first
    assert "created" not in second


ID = "01900000-0000-7000-8000-000000000001"


@pytest.mark.parametrize(
    "words",
    [
        ["info"], ["tasks"], ["failed"], ["show", ID], ["why", ID], ["events"], ["top"], ["health"], ["doctor"], ["retry", ID],
        ["pause"], ["purge", "--older-than=1d"], ["schedules", "list"], ["schedules", "pause", "x"], ["workflows", "list"],
        ["migrate", "--check"], ["web", "--port=0"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_command_that_reads_creates_no_database(
    make_project: Callable[[str], Project], shared: embedded.Server, words: list[str]
) -> None:
    shop = make_project("shop")

    said = shop.refused(*words)

    assert "error[HRS-411]" in said
    assert f"there is no database yet for the folder {shop.folder}: {shop.database} does not exist" in said
    assert "give LOCATOR as package.module:app" in said
    with psycopg.connect(shared.url) as connection:
        assert not connection.execute("SELECT FROM pg_database WHERE datname = %s", (shop.database,)).rowcount


def test_what_creates_the_database_is_said_and_does_so(make_project: Callable[[str], Project]) -> None:
    shop = make_project("shop")

    said = shop.refused("tasks", "shop.tasks:app")
    shop.run("-m", "horsies", "migrate")

    assert "there is no database yet for the app shop.tasks:app" in said
    assert "`horsies migrate` creates it" in said
    assert shop.tasks() == set()


def test_a_command_that_reads_starts_no_server_that_has_no_data(tmp_path: Path) -> None:
    place = Project(tmp_path / "shop", tmp_path / "home")

    said = place.refused("tasks")

    assert "there is no database yet" in said
    assert not place.home.exists()


def test_the_environment_and_the_app_may_name_the_database(
    make_project: Callable[[str], Project], shared: embedded.Server
) -> None:
    shop, bank = make_project("shop"), make_project("bank")
    common = "horsies_common_for_tests"
    for project in (shop, bank):
        project.env["HORSIES_EMBEDDED_DATABASE"] = common
    try:
        sent = {shop.send(), bank.send()}
        assert shop.tasks() == bank.tasks() == sent
        del bank.env["HORSIES_EMBEDDED_DATABASE"]
        tasks = bank.folder / "src" / "shop" / "tasks.py"
        named = tasks.read_text().replace("Horsies()", f"Horsies(AppConfig(embedded_database={common!r}))")
        tasks.write_text(named.replace("import Horsies", "import AppConfig, Horsies"))
        assert {bank.send()} < shop.tasks()
    finally:
        with psycopg.connect(shared.url, autocommit=True) as admin:
            admin.execute(f"DROP DATABASE IF EXISTS {common} WITH (FORCE)".encode())


@pytest.mark.parametrize("name", ["Shop", "a-b", "1st", "x" * 64, "shop;drop", "template1", "ü"])
def test_a_name_that_is_no_name_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_EMBEDDED_DATABASE", name)

    with pytest.raises(HorsiesError, match="embedded_database") as caught:
        AppConfig()
    assert name in caught.value.message
    assert "63 lower-case letters" in (caught.value.help_text or "")


def test_many_processes_may_create_the_database_at_once(make_project: Callable[[str], Project]) -> None:
    shop = make_project("shop")
    command = [sys.executable, "-c", SEND.format(module="shop.tasks")]
    processes = [
        subprocess.Popen(command, cwd=shop.folder, env=shop.env, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    sent = {process.communicate(timeout=60)[0].strip() for process in processes}

    assert [process.returncode for process in processes] == [0] * 4
    assert shop.tasks() == sent


# --- the project of a folder


def test_the_nearest_marked_folder_is_the_project(tmp_path: Path) -> None:
    inner = tmp_path / "repository" / "services" / "shop"
    (inner / "src" / "shop").mkdir(parents=True)
    (tmp_path / "repository" / ".git").mkdir()
    (inner / "pyproject.toml").touch()

    assert project_folder(inner / "src" / "shop") == inner
    assert project_folder(inner.parent) == tmp_path / "repository"


def test_without_a_marker_it_is_the_first_folder_that_is_no_package(tmp_path: Path) -> None:
    package = tmp_path / "shop" / "shop" / "jobs"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()

    assert project_folder(package) == tmp_path / "shop"
    assert project_folder(tmp_path / "shop") == tmp_path / "shop"


def test_the_home_directory_is_no_project_even_if_it_holds_a_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".git").mkdir()
    (tmp_path / "scripts").mkdir()

    assert project_folder(tmp_path / "scripts") == tmp_path / "scripts"


def test_a_link_leads_to_the_same_project(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "shop")

    assert project_folder(tmp_path / "link") == tmp_path / "shop"


@pytest.mark.parametrize("folder", ["/home/ann/shop", "/", "/x/" + "long " * 60, "/x/ÄÖ", "/x/--"])
def test_the_name_is_valid_and_differs_by_folder(folder: str) -> None:
    assert is_database_name(database_name(Path(folder)))
    assert database_name(Path(folder)) != database_name(Path(folder, "other"))


def test_the_name_can_be_read() -> None:
    assert database_name(Path("/home/ann/My Shop")) == "horsies_my_shop_830dfcca"


def test_a_deleted_working_directory_is_no_obstacle(tmp_path: Path) -> None:
    script = (
        "import os, sys; gone = sys.argv[1]; os.mkdir(gone); os.chdir(gone); os.rmdir(gone)\n"
        "from horsies import AppConfig; print(AppConfig().embedded_database)"
    )
    env = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "gone")], env=env, capture_output=True, text=True
    )

    assert done.stdout.strip() == database_name(Path("/")), done.stderr
