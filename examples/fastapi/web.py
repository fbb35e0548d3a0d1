"""A shop: an order enqueues a receipt, and the worker in this process, or in any other, sends it."""

from typing import Annotated

from fastapi import Depends, FastAPI
from pydantic import BaseModel
from tasks import app, send_receipt

from reltask import Job
from reltask.integrations.asgi import lifespan
from reltask.integrations.fastapi import job_of

web = FastAPI(lifespan=lifespan(app))


class Order(BaseModel):
    customer: str
    total: int


@web.post("/orders", status_code=202)
async def order(order: Order) -> dict[str, str]:
    job = await send_receipt.enqueue(order.customer, order.total)
    return {"receipt": str(job.id)}


@web.get("/receipts/{job_id}")
async def receipt(job: Annotated[Job[str], Depends(job_of(send_receipt))]) -> str:
    return await job.result(timeout="10s")
