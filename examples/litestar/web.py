"""A shop: the plugin runs a worker in the server's process."""

from litestar import Litestar, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from tasks import app, send_receipt

from reltask import Job
from reltask.integrations.litestar import ReltaskPlugin, job_of


@post("/orders", status_code=202)
async def order(data: JSONBody[dict[str, str]]) -> dict[str, str]:
    job = await send_receipt.enqueue(data["customer"])
    return {"receipt": str(job.id)}


@get("/receipts/{job_id:uuid}", dependencies={"job": job_of(send_receipt)})
async def receipt(job: NamedDependency[Job[str]]) -> dict[str, str]:
    return {"text": await job.result(timeout="10s")}


web = Litestar([order, receipt], plugins=[ReltaskPlugin(app)])
