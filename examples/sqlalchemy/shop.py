"""Orders with SQLAlchemy, on SQLite or on what SHOP_DATABASE names: writes and completion commit together."""

import os

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from reltask import App, SyncContext

DATABASE = os.environ.get("SHOP_DATABASE", "sqlite:///shop.db")
engine = create_engine(DATABASE.replace("postgresql:", "postgresql+psycopg:"))
app = App(DATABASE)


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    stock_left: Mapped[int | None] = mapped_column(default=None)


@app.task
def book(ctx: SyncContext, order_id: int) -> int:
    """The order is booked, and the slot is done: both, or neither."""
    with Session(engine) as session, ctx.transaction(connection=session) as tx:
        order = session.get_one(Order, order_id)
        order.stock_left = 41
        tx.result = order.stock_left
    return 41


Base.metadata.create_all(engine)
