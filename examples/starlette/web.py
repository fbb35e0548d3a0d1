"""A server that only enqueues: its workers are processes of their own. The dashboard is below /jobs."""

from uuid import UUID

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from tasks import app, send_receipt

from reltask.integrations.asgi import lifespan


async def order(request: Request) -> JSONResponse:
    job = await send_receipt.enqueue((await request.json())["customer"])
    return JSONResponse({"receipt": str(job.id)}, status_code=202)


async def receipt(request: Request) -> JSONResponse:
    job = send_receipt.job(id=UUID(str(request.path_params["job_id"])))
    return JSONResponse(await job.result(timeout="10s"))


routes = [
    Route("/orders", order, methods=["POST"]),
    Route("/receipts/{job_id:uuid}", receipt),
    Mount("/jobs", app.dashboard()),  # answers to this machine only, unless you give it `authorize`
]
web = Starlette(routes=routes, lifespan=lifespan(app, worker=False))
