import asyncio

from fastapi.testclient import TestClient
from shop import app, book
from web import web

from reltask.testing import TestKit, drain


def test_an_order_enqueues_its_booking(reltask: TestKit) -> None:
    placed = TestClient(web).post("/orders", json={"customer": "Ada"})
    reltask.assert_enqueued(book, order_id=placed.json()["order"])  # on the fixture's own database


def test_order_and_booking_share_their_transactions() -> None:
    """Without the fixture: the real tables, on the tests' own database."""
    with TestClient(web) as client:
        assert client.post("/orders", json={"customer": "Mallory"}).status_code == 409
        assert app.jobs_sync() == []
        client.post("/orders", json={"customer": "Grace"})
        asyncio.run(drain(app))
        assert client.get("/orders").json()[-1] == "Grace: 41"
    app.close()
