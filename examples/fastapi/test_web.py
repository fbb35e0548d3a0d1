from uuid import uuid4

from fastapi.testclient import TestClient
from tasks import report, send_receipt
from web import web

from reltask.testing import TestKit

client = TestClient(web)  # without a `with` block there is no lifespan, so the fixture alone runs jobs


def test_an_order_sends_a_receipt(reltask: TestKit) -> None:
    placed = client.post("/orders", json={"customer": "Ada", "total": 3})
    assert placed.status_code == 202
    reltask.assert_enqueued(send_receipt, customer="Ada", total=3)
    reltask.run_until_idle()
    assert client.get(f"/receipts/{placed.json()['receipt']}").json() == "Dear Ada, you paid 3."


def test_an_unknown_receipt_is_not_found(reltask: TestKit) -> None:
    assert client.get(f"/receipts/{uuid4()}").status_code == 404


def test_the_report_is_of_another_task(reltask: TestKit) -> None:
    other = report.enqueue_sync()
    reltask.run_until_idle()
    assert client.get(f"/receipts/{other.id}").status_code == 404
