"""The pytest plugin in small projects, as their users run it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PLUGIN = "reltask.integrations.pytest_plugin"

TASKS = """
from reltask import App, Context, Signal

app = App("postgresql://nowhere.invalid/shop")      # never reached
approved = Signal("approved", bool)

@app.task
async def send(to: str, copies: int = 1) -> None:
    print("sent", to)

@app.task
def register(name: str) -> None:
    send.enqueue_sync(to=name)

@app.task
async def order(ctx: Context) -> str:
    await ctx.sleep("cool off", "2d")
    return "shipped" if await ctx.wait_for(approved) else "refused"

@app.task(every="1d")
async def daily() -> None:
    send.call("everyone")
"""

TESTS = """
import pytest
from shop.tasks import app, approved, order, register, send


def test_sync(reltask):
    register.enqueue_sync("ada")
    reltask.assert_enqueued(register, name="ada")
    reltask.assert_not_enqueued(send)
    assert [run.task for run in reltask.run_until_idle()] == ["register", "send"]      # and no schedule
    assert reltask.assert_enqueued(send, to="ada").arguments == {"to": "ada", "copies": 1}


async def test_async(reltask):
    await register.enqueue("bob")
    reltask.run_until_idle()
    assert [job.task for job in reltask.enqueued] == ["register", "send"]      # and nothing of the test before


def test_durable(reltask):
    job = order.enqueue_sync()
    reltask.run_until_idle()
    reltask.advance("2d")
    job.signal_sync(approved, True)
    reltask.run_until_idle()
    assert job.result_sync() == "shipped"


def test_schedules(reltask):
    assert [run.task for run in reltask.advance("3d")] == ["daily"] * 3


def test_that_fails(reltask):
    reltask.assert_enqueued(send, to="eve")


def test_without_the_fixture():
    assert "nowhere" in app.url
"""


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """As on the command line; the plugin is loaded by name where reltask was installed before it had one."""
    known = {entry.value for entry in entry_points(group="pytest11")}
    return pytester.runpytest_subprocess(*(() if PLUGIN in known else ("-p", PLUGIN)), *arguments)


def test_the_plugin_is_an_entry_point() -> None:
    """It is found without a line in the user's conftest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"reltask": PLUGIN}


def test_the_plugin_costs_nothing_where_it_is_not_used() -> None:
    """It is imported by every run of pytest on a machine with reltask: without msgspec, drivers or the app."""
    code = f"import sys, {PLUGIN}; print([m for m in sys.modules if m in ('msgspec', 'reltask.app', 'asyncpg')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_project_with_sync_and_async_tests(pytester: pytest.Pytester) -> None:
    """The app of `reltask_app`, on a database and a clock of each test's own."""
    pytester.makepyprojecttoml(
        '[tool.pytest.ini_options]\nreltask_app = "shop.tasks:app"\nasyncio_mode = "auto"\npythonpath = ["."]\n'
    )
    pytester.mkpydir("shop").joinpath("tasks.py").write_text(TASKS)
    pytester.makepyfile(test_shop=TESTS)
    result = run(pytester)
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(["*AssertionError: send(to='eve') was not enqueued. Enqueued: nothing."])


def test_without_the_option_the_fixture_says_what_is_missing(pytester: pytest.Pytester) -> None:
    """So does an app that cannot be imported; neither fails as an error in reltask."""
    pytester.makepyfile("def test_shop(reltask): ...")
    run(pytester).stdout.fnmatch_lines(["*Set reltask_app*"])
    pytester.makeini("[pytest]\nreltask_app = nowhere:app")
    run(pytester).stdout.fnmatch_lines(["*reltask_app: *nowhere*"])


DJANGO = """
import django
from django.conf import settings

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"],
)
django.setup()

from django.test.utils import setup_databases

setup_databases(verbosity=0, interactive=False)
"""

DJANGO_TESTS = """
import pytest
from django.contrib.auth.models import User
from django.test import TestCase
from reltask import App

app = App("sqlite:///never-opened.db")


@app.task
def rename(pk: int, name: str) -> None:
    user = User.objects.get(pk=pk)          # written by the test, in a transaction that is never committed
    user.username = name
    user.save()


class RenameTest(TestCase):
    @pytest.fixture(autouse=True)
    def kit(self, reltask):
        self.reltask = reltask

    def test_the_task_sees_the_transaction_of_the_test(self):
        user = User.objects.create(username="ada")
        rename.enqueue_sync(user.pk, "grace")
        self.reltask.run_until_idle()
        user.refresh_from_db()
        assert user.username == "grace"

    def test_nothing_is_left_of_it(self):
        assert User.objects.count() == 0
"""


def test_a_django_test_case(pytester: pytest.Pytester) -> None:
    """`def` bodies run in the test's thread, so they see its transaction, which is rolled back afterwards."""
    pytester.makeini("[pytest]\nreltask_app = test_users:app\npythonpath = .\n")
    pytester.makeconftest(DJANGO)
    pytester.makepyfile(test_users=DJANGO_TESTS)
    run(pytester).assert_outcomes(passed=2)
