"""What views show of payloads: everything but `Annotated[…, Hidden]`."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reltask.model.codec import is_encoded
from reltask.model.hidden import MASK, masked_arguments, masked_json
from reltask.model.screens import Payload
from reltask.model.task import Registry
from reltask.model.views import RunView


class Shown(Struct, frozen=True):
    """Masks what the types of an app's tasks hide."""

    registry: Registry

    def arguments(self, payload: Payload) -> dict[str, Any] | None:
        """Arguments without what is hidden. Those of an unknown task are all hidden: no type says which may be seen."""
        if payload.args is None:
            return None
        if is_encoded(payload.args):
            return {"(encoded)": MASK}
        task = self.registry.find(payload.task)
        return masked_arguments(payload.args, {} if task is None else task.arguments.hints)

    def runs(self, runs: list[RunView]) -> list[RunView]:
        """Runs without results that are hidden."""
        return [self._run(run) for run in runs]

    def _run(self, run: RunView) -> RunView:
        task = self.registry.find(run.task)
        if task is None or run.result is None or is_encoded(run.result):
            return run
        return replace(run, result=masked_json(run.result, task.arguments.returns))
