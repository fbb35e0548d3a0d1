"""The recurring jobs that an app's code declares, by `@app.task(every=…)` and by `app.schedule(…)`."""

from __future__ import annotations

from typing import Any

import msgspec

from reltask.errors import ArgumentsError, DeclarationError
from reltask.model.job import NewJob
from reltask.model.schedule import Schedule, check_grace
from reltask.model.task import TaskDefinition, declaration_hash
from reltask.producer.enqueue import Call, Enqueuer
from reltask.producer.options import JobOptions, check_job_options
from reltask.producer.task import Producer


class Schedules:
    """What one app declares; a worker writes it into the table when it starts."""

    def __init__(self, enqueuer: Enqueuer) -> None:
        self._enqueuer = enqueuer
        self._calls: dict[tuple[str, str | None], Call[Any]] = {}

    def add_own(self, task: TaskDefinition) -> None:
        """The schedule in a task's own decorator."""
        try:
            args = task.arguments.encode((), {})
        except ArgumentsError as error:
            raise DeclarationError(
                f"Task {task.name} recurs without arguments, but its parameters need some.",
                remedy="Give each parameter a default, or declare it with app.schedule(task.call(…), key=…, every=…).",
            ) from error
        self._calls[task.name, None] = Call(task, args, JobOptions(schedule=task.schedule))

    def add(self, what: Producer[..., Any] | Call[Any] | Any, *, key: str | None, rule: Schedule | None) -> None:
        """One more schedule of a task, or of a call with its arguments."""
        if not isinstance(what, Producer | Call):
            raise DeclarationError(
                f"app.schedule takes a task, not {type(what).__name__}.", remedy="Decorate it with @app.task."
            )
        call = what if isinstance(what, Call) else what.call()
        if rule is None:
            raise DeclarationError("A schedule needs a rhythm.", remedy='Write every="10m" or cron="0 9 * * *".')
        check_grace(rule)
        key = _key_of(call, key)
        options = msgspec.structs.replace(call.options, key=key, schedule=rule)
        if key is not None:
            check_job_options(options)
        name = (call.task.name, key)
        if name in self._calls:
            raise DeclarationError(
                f"Task {call.task.name} is scheduled twice{f' with key {key!r}' if key else ''}.",
                remedy="Give each schedule a key of its own: key=…",
            )
        self._calls[name] = Call(call.task, call.args, options, call.headers)

    def jobs(self, app_version: str | None) -> list[NewJob]:
        """The rows that should exist."""
        placement = self._enqueuer.placement
        home = None if placement is None else placement.home
        hashing, new_ids = self._enqueuer.access.keys, self._enqueuer.new_ids
        jobs = [call.job(new_ids(1, shard=home)[0], hashing) for call in self._calls.values()]
        return [
            msgspec.structs.replace(
                job, declaration=declaration_hash(job, self._enqueuer.access.keys), app_version=app_version
            )
            for job in jobs
        ]


def _key_of(call: Call[Any], key: str | None) -> str | None:
    """The key of this call's schedule.

    DeclarationError if the call says when to run, or names another key.
    """
    options = call.options
    given = {"delay=": options.delay, "at=": options.at, "every= or cron=": options.schedule}
    for name, value in given.items():
        if value is not None:
            raise DeclarationError(
                f"Task {call.task.name}: {name} in a call that is scheduled would be without effect.",
                remedy="Leave it out of using(…): app.schedule says when the job runs.",
            )
    if None not in (key, options.key) and key != options.key:
        raise DeclarationError(
            f"Task {call.task.name}: key={options.key!r} in the call, and key={key!r} for its schedule.",
            remedy="Give one of them.",
        )
    return options.key if key is None else key
