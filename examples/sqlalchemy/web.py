"""The order and its job are written in one transaction: a refused order leaves no job behind."""

from uuid import UUID

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from shop import Order, app, book, engine
from sqlalchemy.orm import Session

from reltask.integrations.asgi import lifespan

web = FastAPI(lifespan=lifespan(app, worker=False))


class NewOrder(BaseModel):
    customer: str


@web.post("/orders", status_code=202)
def place(new: NewOrder) -> dict[str, str | int]:
    with Session(engine) as session, session.begin():
        order = Order(customer=new.customer)
        session.add(order)
        session.flush()
        job = book.using(connection=session).enqueue_sync(order.id)
        if new.customer == "Mallory":  # whatever refuses it: both are undone
            raise HTTPException(409, "Mallory gets nothing.")
        return {"order": order.id, "booking": str(job.id)}


@web.get("/bookings/{job_id}")
def booking(job_id: UUID) -> int:
    return book.job(id=job_id).result_sync(timeout="10s")


@web.get("/orders")
def orders() -> list[str]:
    with Session(engine) as session:
        return [f"{order.customer}: {order.stock_left}" for order in session.query(Order).order_by(Order.id)]
