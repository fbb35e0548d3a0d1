from uuid import uuid4

from litestar.testing import TestClient
from tasks import send_receipt
from web import web

from reltask.testing import TestKit

client = TestClient(web)  # without a `with` block there is no lifespan, so the fixture alone runs jobs


def test_an_order_sends_a_receipt(reltask: TestKit) -> None:
    placed = client.post("/orders", json={"customer": "Ada"})
    reltask.assert_enqueued(send_receipt, customer="Ada")
    reltask.run_until_idle()
    assert client.get(f"/receipts/{placed.json()['receipt']}").json() == {"text": "Dear Ada, thank you."}


def test_an_unknown_receipt_is_not_found(reltask: TestKit) -> None:
    assert client.get(f"/receipts/{uuid4()}").status_code == 404
