"""Five actions: retry, cancel, run now, pause and resume, signal; on one job, on some, or on all that match a filter.

    form ──► same origin, token ──► recorded: who, what, which fence ──► done, with that fence ──► outcome recorded
                                    (so an action that was cut off is in the log, without an outcome)

Each job is named with the fence that the page showed. A job that was claimed again since is left as it is, and the
answer says so: what a person decided about one run is not done to another.

Many jobs at once are confirmed first: see bulk.py. The log names them, each with its fence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, urlencode
from uuid import uuid4

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from reltask.model.control import Pause, PauseKind
from reltask.model.durable import NewSignal
from reltask.model.escape import escape
from reltask.model.job import Cancellation
from reltask.model.screens import NewAction
from reltask.stores.store import Store
from reltask.web.access import Viewer, forged
from reltask.web.bulk import BULK, WORDS, Seen, read_only, read_seen
from reltask.web.forms import JobFilter, read_filter, read_id

if TYPE_CHECKING:
    from reltask.web.dashboard import Dashboard

LARGEST = 1_000_000
"""Bytes of a form."""
NAMED = 200
"""Jobs of one action that the log names."""


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
        """The jobs that were chosen, each as "id:fence", or those of a confirmation."""
        found = read_seen(self.get("jobs"))
        for text in self._fields.get("job", []):
            identity, _, fence = text.partition(":")
            job_id = read_id(identity)
            if job_id is not None and fence.isascii() and fence.isdigit():
                found.append(Seen(job_id, int(fence)))
        return found


# Acting


class Asked(NamedTuple):
    """A form that was sent by a viewer who may act."""

    dashboard: Dashboard
    request: Request
    form: Form
    viewer: Viewer

    def refused(self, text: str, remedy: str = "") -> Response:
        """It makes no sense: nothing is changed or recorded."""
        return self.dashboard.failure(self.request, 400, text, remedy)

    def record(self, action: str, target: str, *, seen: str | None = None, jobs: int = 1) -> NewAction:
        """What is about to be done."""
        actor = _printable(self.viewer.name)[:250]
        return NewAction(id=uuid4(), actor=actor, action=action, target=_printable(target), seen=seen, jobs=jobs)


async def act(dashboard: Dashboard, request: Request) -> Response:
    """Do what a form asks for."""
    viewer: Viewer = request.state.viewer
    body = await request.body()
    form = Form(body[:LARGEST].decode("utf-8", "replace"))
    if refused := forged(request, form.get("token")):
        return dashboard.failure(request, 403, refused)
    if not viewer.may_act:
        return read_only(dashboard, request)
    return await _do(Asked(dashboard, request, form, viewer))


async def _do(asked: Asked) -> Response:
    form, action = asked.form, asked.form.get("action")
    if form.get("kind"):
        return await _pause_lane(asked)
    if action == "signal":
        return await _signal(asked)
    if action not in WORDS:
        return asked.refused("There is no such action.")
    chosen = form.jobs()
    if not chosen:
        return asked.refused("No job was chosen.", "Choose one in the list: the key x does so.")
    if form.get("jobs") and action not in BULK[form.filter().state]:
        return asked.refused("This cannot be done to all jobs of this list.")
    return await _act_on(asked, chosen)


async def _act_on(asked: Asked, chosen: list[Seen]) -> Response:
    action = asked.form.get("action")
    record = asked.record(WORDS[action].lower(), _target(asked.form, chosen), seen=_fences(chosen), jobs=len(chosen))

    async def work(store: Store) -> int:
        await store.record_action(record)
        changed = 0
        for job in chosen:
            changed += await _change(asked.dashboard, store, action, job)
        if changed:
            await store.signal()
        refused = len(chosen) - changed
        outcome = "done" if not refused else f"{refused} left as they were: they had changed since"
        await store.end_action(record.id, outcome=outcome, changed=changed)
        return changed

    return _back(asked, WORDS[action], await asked.dashboard.reader.ask(work), len(chosen))


def _target(form: Form, chosen: list[Seen]) -> str:
    """What the log says an action was for: the filter, and each job with its fence."""
    if len(chosen) == 1:
        return str(chosen[0].id)
    named = ", ".join(f"{job.id}:{job.fence}" for job in chosen[:NAMED])
    more = f" and {len(chosen) - NAMED} more" if len(chosen) > NAMED else ""
    error = form.get("error")
    words = form.filter().words + (f", error {error}" if error else "") if form.get("jobs") else "chosen"
    return f"{_printable(words)[:1_000]}: {named}{more}"


def _fences(chosen: list[Seen]) -> str:
    """The fences that the page showed."""
    fences = sorted({job.fence for job in chosen})
    return f"fence {fences[0]}" if len(fences) == 1 else f"fences {fences[0]} to {fences[-1]}"


async def _change(dashboard: Dashboard, store: Store, action: str, job: Seen) -> bool:
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
            return await _again(dashboard, store, job)


async def _cancel(store: Store, job: Seen) -> bool:
    """End the slot that was seen, or have its holder end it."""
    answer = await store.cancel_job(job.id, fence=job.fence)
    if answer is Cancellation.STOPPING:
        await store.signal_cancel([job.id])
    return answer is not None


async def _again(dashboard: Dashboard, store: Store, job: Seen) -> bool:
    """Enqueue what an ended one-off was given, as a new job."""
    payload, runs = await store.read_payload(job.id), await store.list_runs(job_id=job.id, limit=1)
    if payload is None or payload.args is None or not runs or runs[0].fence != job.fence:
        return False
    await dashboard.run_again(payload, store)
    return True


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
            reason = _printable(form.get("reason"))[:500] or None
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


def _printable(text: str) -> str:
    """For the log: no control characters, and not longer than its columns."""
    return escape(text)[:9_000]
