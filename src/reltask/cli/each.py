"""Doing one thing to each of several jobs, and reporting what became of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

from reltask.cli.errors import report
from reltask.cli.runner import EXIT_OK
from reltask.cli.show import print_json, print_line
from reltask.errors import UnknownJob


def do_each(job_ids: Iterable[UUID], do: Callable[[UUID], str], *, label: str, nothing: str, as_json: bool) -> int:
    """Report the answer for each job, under `label` in JSON, and go on after one that cannot be changed."""
    code, answers = EXIT_OK, list[dict[str, object]]()
    for job_id in job_ids:
        try:
            answer = do(job_id)
        except UnknownJob as error:
            code = report(error, debug=False)
            answers.append({"id": job_id, "error": error.message})
        else:
            answers.append({"id": job_id, label: answer})
            if not as_json:
                print_line(f"{job_id} {answer}")
    if as_json:
        print_json(answers)
    elif not answers:
        print_line(nothing)
    return code
