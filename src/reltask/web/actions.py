"""Five actions: retry, cancel, run now, pause and resume, signal; on one job, on some, or on all that match a filter.

    form ──► same origin, token ──► recorded: who, what, which fence ──► done, with that fence ──► outcome recorded
                                    (so an action that was cut off is in the log, without an outcome)

Each job is named with the fence that the page showed. A job that was claimed again since is left as it is, and the
answer says so: what a person decided about one run is not done to another.

Many jobs are named by a filter and confirmed with their exact number. If there are more by then, the page asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, urlencode
from uuid import UUID, uuid4

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from reltask.model.control import Pause, PauseKind
from reltask.model.durable import NewSignal
from reltask.model.escape import escape
from reltask.model.job import Cancellation, NewJob
from reltask.model.overview import MOST
from reltask.model.screens import Cursor, ListedState, NewAction
from reltask.model.task import ONE_OFF_ATTEMPTS
from reltask.stores.store import Store
from reltask.web.access import Viewer, forged
from reltask.web.forms import JobFilter, read_filter, read_id

if TYPE_CHECKING:
    from reltask.web.dashboard import Dashboard

LARGEST = 1_000_000
"""Bytes of a form."""
WORDS = {
    "retry": "Retry",
    "again": "Run again",
    "run": "Run now",
    "pause": "Pause",
    "resume": "Resume",
    "cancel": "Cancel",
    "signal": "Signal",
}
"""What can be done to jobs, as the buttons say it."""
COMMANDS = {
    "retry": "reltask dead retry",
    "run": "reltask jobs run",
    "pause": "reltask jobs pause",
    "resume": "reltask jobs resume",
    "cancel": "reltask jobs cancel",
}
BULK = {
    ListedState.DUE: ("pause", "cancel"),
    ListedState.LATER: ("run", "pause", "cancel"),
    ListedState.SUSPENDED: ("pause", "cancel"),
    ListedState.CLAIMED: ("cancel",),
    ListedState.PAUSED: ("resume", "cancel"),
    ListedState.DEAD: ("retry",),
}
"""What can be done to all jobs of a list."""
SHOWN = 20
"""Jobs that a confirmation names."""


class Seen(NamedTuple):
    """A job, and the fence that the page showed."""

    id: UUID
    fence: int


class Bulk(NamedTuple):
    """What is to be done to all jobs that match."""

    action: str
    wanted: JobFilter
    error: str
    """Only dead letters with this kind of error; empty: any."""


class Form:
    """The fields of a form; nothing is trusted."""

    def __init__(self, text: str) -> None:
        self._fields = parse_qs(text, keep_blank_values=True, max_num_fields=2_000)

    def get(self, name: str) -> str:
        """A field's first value; empty if there is none."""
        return self._fields.get(name, [""])[0].strip()

    def filter(self) -> JobFilter:
        """The filter of a list, from its hidden fields."""
        return read_filter({name: self.get(name) for name in ("state", "task", "queue")})

    def jobs(self) -> list[Seen]:
        """The jobs that were chosen, each as "id:fence"."""
        found = []
        for text in self._fields.get("job", []):
            identity, _, fence = text.partition(":")
            job_id = read_id(identity)
            if job_id is not None and fence.isdigit():
                found.append(Seen(job_id, int(fence)))
        return found


# Asking first


async def confirm(dashboard: Dashboard, request: Request) -> Response:
    """The exact number of jobs that match, some of their names, and one button."""
    query = request.query_params
    action, wanted = query.get("action", ""), read_filter(query)
    error = query.get("error", "")
    if not request.state.viewer.may_act:
        return _read_only(dashboard, request)
    if action not in BULK.get(wanted.state, ()):
        return dashboard.failure(request, 400, "This cannot be done to all jobs of this list.")
    matching = await dashboard.reader.ask(lambda store: find_all(store, wanted, error))
    return _ask(dashboard, request, Bulk(action, wanted, error), matching)


def _ask(dashboard: Dashboard, request: Request, bulk: Bulk, matching: list[Seen], *, note: str = "") -> Response:
    action, wanted, error = bulk
    return dashboard.page(
        request,
        "confirm.html",
        status=409 if note else 200,
        action=action,
        word=WORDS[action],
        filter=wanted,
        error=error,
        count=len(matching),
        names=matching[:SHOWN],
        capped=len(matching) >= MOST,
        note=note,
        same=_command(action, wanted),
    )


def _command(action: str, wanted: JobFilter) -> str:
    if action == "retry":
        return "reltask dead retry --all"
    listing = f"reltask jobs list --state {_STORED[wanted.state]}" + (f" --task {wanted.task}" if wanted.task else "")
    return f"{listing} --json | jq -r '.[].id' | xargs -n1 {COMMANDS[action]}"


_STORED = {
    ListedState.DUE: "ready",
    ListedState.LATER: "ready",
    ListedState.SUSPENDED: "suspended",
    ListedState.CLAIMED: "claimed",
    ListedState.PAUSED: "paused",
    ListedState.DEAD: "dead",
}


async def find_all(store: Store, wanted: JobFilter, error: str = "") -> list[Seen]:
    """Every job that matches, up to MOST: those of a list, or the dead letters with one kind of error."""
    if wanted.state is ListedState.DEAD:
        letters = await store.list_dead_errors(most=MOST)
        return [
            Seen(letter.id, letter.fence)
            for letter in letters
            if wanted.task in (None, letter.task)
            and wanted.queue in (None, letter.queue)
            and error in ("", letter.signature)
        ]
    found: list[Seen] = []
    after: Cursor | None = None
    while len(found) < MOST:
        page = await store.page_jobs(wanted.state, task=wanted.task, queue=wanted.queue, after=after, limit=1_000)
        found += [Seen(row.job.id, row.job.fence) for row in page.rows]
        after = page.next
        if after is None:
            break
    return found[:MOST]


# Acting


class Asked(NamedTuple):
    """A form that was sent by a person who may act."""

    dashboard: Dashboard
    request: Request
    form: Form
    viewer: Viewer

    def refused(self, text: str, remedy: str = "") -> Response:
        """It makes no sense: nothing is changed or recorded."""
        return self.dashboard.failure(self.request, 400, text, remedy)

    def record(self, action: str, target: str, *, seen: str | None = None, jobs: int = 1) -> NewAction:
        """What is about to be done."""
        actor = _printable(self.viewer.name)
        return NewAction(id=uuid4(), actor=actor, action=action, target=_printable(target), seen=seen, jobs=jobs)


async def act(dashboard: Dashboard, request: Request) -> Response:
    """Do what a form asks for."""
    viewer: Viewer = request.state.viewer
    body = await request.body()
    form = Form(body[:LARGEST].decode("utf-8", "replace"))
    if refused := forged(request, form.get("token")):
        return dashboard.failure(request, 403, refused)
    if not viewer.may_act:
        return _read_only(dashboard, request)
    return await _do(Asked(dashboard, request, form, viewer))


async def _do(asked: Asked) -> Response:
    form, action = asked.form, asked.form.get("action")
    if form.get("kind"):
        return await _pause_lane(asked)
    if action == "signal":
        return await _signal(asked)
    if action not in WORDS:
        return asked.refused("There is no such action.")
    if form.get("all"):
        return await _act_on_all(asked)
    chosen = form.jobs()
    if not chosen:
        return asked.refused("No job was chosen.", "Choose one in the list: the key x does so.")
    return await _act_on(asked, chosen, str(chosen[0].id) if len(chosen) == 1 else f"{len(chosen)} chosen jobs")


async def _act_on_all(asked: Asked) -> Response:
    dashboard, request, form, _ = asked
    action, wanted, error = form.get("action"), form.filter(), form.get("error")
    if action not in BULK.get(wanted.state, ()):
        return asked.refused("This cannot be done to all jobs of this list.")
    confirmed = int(form.get("count")) if form.get("count").isdigit() else -1
    matching = await dashboard.reader.ask(lambda store: find_all(store, wanted, error))
    if len(matching) > confirmed:
        note = f"The list has grown: {len(matching)} jobs now, {confirmed} were confirmed. Nothing was changed."
        return _ask(dashboard, request, Bulk(action, wanted, error), matching, note=note)
    return await _act_on(asked, matching, wanted.words + (f", error {error}" if error else ""))


async def _act_on(asked: Asked, chosen: list[Seen], target: str) -> Response:
    action = asked.form.get("action")
    seen = f"fence {chosen[0].fence}" if len(chosen) == 1 else None
    record = asked.record(WORDS[action].lower(), target, seen=seen, jobs=len(chosen))

    async def work(store: Store) -> int:
        await store.record_action(record)
        changed = 0
        for job in chosen:
            changed += await _change(store, action, job)
        if changed:
            await store.signal()
        refused = len(chosen) - changed
        outcome = "done" if not refused else f"{refused} left as they were: they had changed since"
        await store.end_action(record.id, outcome=outcome, changed=changed)
        return changed

    return _back(asked, WORDS[action], await asked.dashboard.reader.ask(work), len(chosen))


async def _change(store: Store, action: str, job: Seen) -> bool:
    """Do it to one job, if it is still the run that was seen."""
    match action:
        case "retry":
            return await store.retry_job(job.id, fence=job.fence)
        case "run":
            return await store.run_job_now(job.id, fence=job.fence)
        case "pause":
            return await store.pause_job(job.id, fence=job.fence)
        case "resume":
            return await store.resume_job(job.id, fence=job.fence)
        case "cancel":
            return await _cancel(store, job)
        case _:
            return await _again(store, job)


async def _cancel(store: Store, job: Seen) -> bool:
    """End the slot that was seen, or have its holder end it."""
    answer = await store.cancel_job(job.id, fence=job.fence)
    if answer is Cancellation.STOPPING:
        await store.signal_cancel([job.id])
    return answer is not None


async def _again(store: Store, job: Seen) -> bool:
    """Enqueue what an ended one-off was given, as a new job."""
    payload, runs = await store.read_payload(job.id), await store.list_runs(job_id=job.id, limit=1)
    if payload is None or payload.args is None or not runs or runs[0].fence != job.fence:
        return False
    new = NewJob(
        id=uuid4(),
        task=payload.task,
        queue=payload.queue,
        priority=5 if payload.priority is None else payload.priority,
        args=payload.args,
        headers=payload.headers,
        max_attempts=ONE_OFF_ATTEMPTS,
    )
    return bool(await store.enqueue_jobs([new]))


async def _pause_lane(asked: Asked) -> Response:
    """Pause or resume a queue or a task."""
    form = asked.form
    kind, name, action = form.get("kind"), form.get("name"), form.get("action")
    if kind not in ("queue", "task") or action not in ("pause", "resume") or not name:
        return asked.refused("There is no such action.")
    record = asked.record(action, f"{kind} {name}", jobs=0)

    async def work(store: Store) -> bool:
        await store.record_action(record)
        if action == "pause":
            reason = _printable(form.get("reason")) or None
            changed = await store.add_pause(
                Pause(kind=PauseKind(kind), name=name, reason=reason, paused_by=record.actor)
            )
        else:
            changed = await store.end_pause(PauseKind(kind), name)
            await store.signal()
        await store.end_action(record.id, outcome="done" if changed else "it was so already", changed=int(changed))
        return changed

    changed = await asked.dashboard.reader.ask(work)
    return _back(asked, f"{WORDS[action]} {kind} {name}", int(changed), 1)


async def _signal(asked: Asked) -> Response:
    """Send a signal to a durable function, if it is still in the run that was seen."""
    chosen, name, text = asked.form.jobs(), asked.form.get("signal"), asked.form.get("value") or "null"
    if len(chosen) != 1 or not name:
        return asked.refused("A signal needs a job and a name.")
    try:
        value = msgspec.json.encode(msgspec.json.decode(text)).decode()
    except msgspec.DecodeError:
        return asked.refused("The value is not JSON.", 'Write true, 7, "text" or {"ok": true}.')
    (job,) = chosen
    record = asked.record("signal", f"{job.id}, signal {name}", seen=f"fence {job.fence}")

    async def work(store: Store) -> bool:
        await store.record_action(record)
        row = await store.read_job(job.id)
        sent = False
        if row is not None and row.fence == job.fence:
            sent = bool(await store.send_signals([NewSignal(id=str(record.id), name=name, value=value, job_id=job.id)]))
            await store.signal()
        outcome = "done" if sent else "not sent: it runs again, or has ended"
        await store.end_action(record.id, outcome=outcome, changed=int(sent))
        return sent

    return _back(asked, f"Signal {name}", int(await asked.dashboard.reader.ask(work)), 1)


# Answers


def _back(asked: Asked, what: str, changed: int, meant: int) -> Response:
    """To the page that the form was on, which says what was done."""
    dashboard, request, form, _ = asked
    dashboard.live.forget()
    path = form.get("back")
    if not path or path.startswith(("/", "\\")) or "//" in path or ":" in path.partition("?")[0]:
        path = ""
    joint = "&" if "?" in path else "?"
    said = urlencode({"did": what, "changed": changed, "asked": meant})
    return RedirectResponse(f"{dashboard.root(request)}/{path}{joint}{said}", 303)


def said(query: QueryParams) -> dict[str, object]:
    """What the page says after an action; an address that was made up says nothing."""
    did, changed, asked = query.get("did", ""), query.get("changed", ""), query.get("asked", "")
    if not (did.startswith(tuple(WORDS.values())) and changed.isdigit() and asked.isdigit()):
        return {}
    return {"did": did[:100], "changed": int(changed), "asked": int(asked)}


def _read_only(dashboard: Dashboard, request: Request) -> Response:
    return dashboard.failure(
        request,
        403,
        "You may look, but not act.",
        'On this machine: reltask dashboard --allow-actions. Elsewhere, authorize(request) must answer "act".',
    )


def _printable(text: str) -> str:
    """For the log: no control characters, and not longer than its columns."""
    return escape(text)[:250]
