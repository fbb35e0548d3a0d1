"""reltask as the backend of Django's tasks: a real project, real workers, both of Django's interfaces."""

from __future__ import annotations

import json

import pytest

from tests.docs.conftest import terminal
from tests.docs.pages import ROOT, blocks
from tests.docs.terminal import Terminal
from tests.integrations.django_environment import PROJECT, Project, interpreter

__all__ = ["terminal"]
pytestmark = pytest.mark.slow
PAGE = ROOT / "docs" / "django.md"


@pytest.mark.parametrize(
    "project", ["5.2 on SQLite", "5.2 on PostgreSQL", "6 on SQLite", "6 on PostgreSQL"], indirect=True
)
def test_tasks_run_and_their_results_are_read(project: Project) -> None:
    """Plain, asynchronous, retried and failing tasks: status, value, errors, attempts and workers are Django's."""
    ids = project.python_in_project(
        "from shop.tasks import *\n"
        "for result in (send_receipt.enqueue('Ada', total=3), look_up.enqueue('Ada'), broken.enqueue(),\n"
        "               unreliable.enqueue()):\n"
        "    assert result.status == 'READY' and not result.is_finished and result.attempts == 0\n"
        "    result.refresh()\n"
        "    assert result.status == 'READY', result.status\n"
        "    print(result.id)\n"
    ).split()
    project.manage("reltask", "worker", "--once")
    project.manage("reltask", "jobs", "run", ids[3])  # `unreliable` waits for its next attempt
    project.manage("reltask", "worker", "--once")
    shown = json.loads(
        project.python_in_project(
            "import json\n"
            "from shop.tasks import *\n"
            "backend = send_receipt.get_backend()\n"
            f"found = [backend.get_result(each) for each in {ids!r}]\n"
            "print(json.dumps([[r.task.name, r.status, r.attempts,\n"
            "    r.return_value if r.status == 'SUCCESSFUL' else None,\n"
            "    [e.exception_class.__name__ for e in r.errors], r.args, r.kwargs,\n"
            "    r.enqueued_at <= r.started_at <= r.last_attempted_at <= r.finished_at] for r in found]))\n"
        )
    )
    assert [row[:5] for row in shown] == [
        ["send_receipt", "SUCCESSFUL", 1, "Ada paid 3", []],
        ["look_up", "SUCCESSFUL", 1, {"name": "Ada", "found": True}, []],
        ["broken", "FAILED", 1, None, ["ValueError"]],
        ["unreliable", "SUCCESSFUL", 2, 2, ["ConnectionError"]],
    ]
    assert all(row[7] for row in shown)
    assert [row[5:7] for row in shown] == [[["Ada"], {"total": 3}], [["Ada"], {}], [[], {}], [[], {}]]


def test_enqueue_inside_atomic_commits_or_vanishes_with_it(project: Project) -> None:
    """A task enqueued in a transaction that rolls back was never enqueued; one that commits runs."""
    project.python_in_project(
        "from django.db import transaction\n"
        "from shop.models import Order\n"
        "from shop.tasks import *\n"
        "try:\n"
        "    with transaction.atomic():\n"
        "        lost = book.enqueue(Order.objects.create(customer='lost').pk)\n"
        "        raise KeyError\n"
        "except KeyError:\n"
        "    pass\n"
        "try:\n"
        "    lost.refresh()\n"
        "except Exception as error:\n"
        "    assert type(error).__name__ == 'TaskResultDoesNotExist', error\n"
        "else:\n"
        "    raise AssertionError('it exists')\n"
        "with transaction.atomic():\n"
        "    book.enqueue(Order.objects.create(customer='kept').pk)\n"
    )
    project.manage("reltask", "worker", "--once")
    booked = project.python_in_project(
        "from shop.models import Order\nprint([(o.customer, o.booked) for o in Order.objects.all()])"
    )
    assert booked.strip() == "[('kept', 1)]"


def test_signals_priorities_queues_and_deferral(project: Project) -> None:
    """Django's signals are sent, -100 to 100 keeps its order, `run_after` waits, an unknown queue is refused."""
    out = project.python_in_project(
        "import asyncio\n"
        "from datetime import timedelta\n"
        "from django.utils import timezone\n"
        "from reltask.integrations.django.bodies import rank\n"
        "from reltask.integrations.django.interface import task_enqueued\n"
        "from shop.tasks import *\n"
        "seen = []\n"
        "def note(sender, task_result, **_):\n"
        "    seen.append((sender.__name__, task_result.task.name))\n"
        "task_enqueued.connect(note)\n"
        "later = send_receipt.using(run_after=timezone.now() + timedelta(hours=1)).enqueue('Ada', total=1)\n"
        "asyncio.run(look_up.aenqueue('Ada'))\n"
        "assert seen == [('Backend', 'send_receipt'), ('Backend', 'look_up')], seen\n"
        "ranks = [rank(p) for p in range(-100, 101)]\n"
        "assert ranks == sorted(ranks, reverse=True) and set(ranks) == set(range(10)) and rank(0) == 5, ranks\n"
        "try:\n"
        "    send_receipt.using(queue_name='nowhere')\n"
        "except Exception as error:\n"
        "    print(type(error).__name__)\n"
        "print(later.id)\n"
    ).split()
    assert out[0].startswith("InvalidTask")
    project.manage("reltask", "worker", "--once")
    status = project.python_in_project(
        "from shop.tasks import *\n"
        f"print(send_receipt.get_result({out[1]!r}).status)\n"
        "import asyncio\n"
        f"print(asyncio.run(send_receipt.aget_result({out[1]!r})).status)\n"
        "try:\n"
        f"    book.get_result({out[1]!r})\n"
        "except Exception as error:\n"
        "    print(type(error).__name__)\n"
        "for missing in ('0' * 32, 'no id'):\n"
        "    try:\n"
        "        book.get_result(missing)\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__)\n"
    ).split()
    assert status == ["READY", "READY", "TaskResultMismatch", "TaskResultDoesNotExist", "TaskResultDoesNotExist"]


def test_commands_and_checks(project: Project) -> None:
    """`manage.py reltask …` is reltask's command line on this project; recurring tasks are there."""
    project.manage("reltask", "worker", "--once")
    assert "clean_up" in project.manage("reltask", "jobs", "list")
    assert "no issues" in project.manage("check")
    assert "Usage: manage.py reltask" in project.manage("reltask", "--help")
    assert "No changes" in project.manage("makemigrations", "--check", "--dry-run")


def test_worker_logs_each_line_once(project: Project) -> None:
    """With Django's own logging, a task's line is not printed a second time by Django's console."""
    shown = project.python_in_project(
        "import subprocess, sys\n"
        "from shop.tasks import *\n"
        "send_receipt.enqueue('Ada', total=1)\n"
        "worker = [sys.executable, 'manage.py', 'reltask', 'worker', '--once']\n"
        "print(subprocess.run(worker, capture_output=True, text=True).stderr)\n"
    )
    assert shown.count("send_receipt state=SUCCESSFUL") == 1
    assert shown.count("send_receipt completed in") == 1


def test_admin_pages_show_and_operate(project: Project) -> None:
    """The admin lists jobs, runs and dead letters, retries with the permission, and acts on nothing without it."""
    project.python_in_project("from shop.tasks import *\nbroken.enqueue()\nsend_receipt.enqueue('Ada', total=1)")
    project.manage("reltask", "worker", "--once")
    out = project.python_in_project(
        "from django.contrib.auth.models import Permission, User\n"
        "from django.test import Client\n"
        "from reltask.integrations.django.models import DeadLetter, Job\n"
        "User.objects.create_superuser('root', password='x')\n"
        "reader = User.objects.create_user('reader', password='x', is_staff=True)\n"
        "reader.user_permissions.set(Permission.objects.filter(content_type__app_label='reltask',\n"
        "                                                      codename__startswith='view'))\n"
        "dead = Job.objects.get(dead_at__isnull=False)\n"
        "for name in ('reader', 'root'):\n"
        "    client = Client()\n"
        "    assert client.login(username=name, password='x')\n"
        "    pages = [client.get(f'/admin/reltask/{page}/') for page in ('job', 'run', 'deadletter')]\n"
        "    assert [page.status_code for page in pages] == [200] * 3, pages\n"
        "    assert b'ValueError: no such order' in pages[2].content\n"
        "    assert client.get(f'/admin/reltask/job/{dead.pk}/change/').status_code == 200\n"
        "    assert client.get('/admin/reltask/job/?q=broken').status_code == 200\n"
        "    client.post('/admin/reltask/deadletter/', {'action': 'retry', '_selected_action': [str(dead.pk)]})\n"
        "    dead.refresh_from_db()\n"
        "    print('dead' if dead.dead_at else 'alive')\n"
        "for action in ('pause', 'resume', 'run_now', 'cancel'):\n"
        "    client.post('/admin/reltask/job/', {'action': action, '_selected_action': [str(dead.pk)]})\n"
        "    job = Job.objects.filter(pk=dead.pk).first()\n"
        "    print('gone' if job is None else 'paused' if job.paused_at else 'waiting')\n"
        "from django.contrib.admin.models import LogEntry\n"
        "print(*LogEntry.objects.order_by('pk').values_list('user__username', flat=True))\n"
    ).split()
    assert out == ["dead", "alive", "paused", "waiting", "waiting", "gone", *["root"] * 5]


def test_page_shows_the_example() -> None:
    """What docs/django.md shows of tasks and tests is in the project that these tests run."""
    example = "\n".join(path.read_text(encoding="utf-8") for path in (PROJECT / "shop").glob("*.py"))
    shown = [
        line
        for block in blocks(PAGE)
        if block.language == "python" and not block.title
        for line in block.text.splitlines()
    ]
    assert [line for line in shown if line not in example] == []


@pytest.mark.parametrize("version", ["5.2", "6"])
def test_page_leads_from_an_empty_folder_to_a_run(terminal: Terminal, version: str) -> None:
    """The commands and files of docs/django.md, in the order of the page, are all that it takes, on both versions."""
    python = interpreter(version)
    terminal.instead = {"django-admin ": f"{python} -m django ", "python manage.py": f"{python} manage.py"}
    terminal.skip = {'pip install "reltask[django]"': "it is installed, and the network stays alone"}
    for block in blocks(PAGE):
        if block.title == "mysite/settings.py":
            with (terminal.directory / block.title).open("a", encoding="utf-8") as settings:
                settings.write(block.text)
        elif block.title:
            (terminal.directory / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            terminal.read(block)
    assert terminal.close() == []
    assert terminal.skipped == set(terminal.skip)
