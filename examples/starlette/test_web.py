from starlette.testclient import TestClient
from tasks import send_receipt
from web import web

from reltask.testing import TestKit

client = TestClient(web)  # without a `with` block there is no lifespan


def test_an_order_sends_a_receipt(reltask: TestKit) -> None:
    placed = client.post("/orders", json={"customer": "Ada"})
    reltask.assert_enqueued(send_receipt, customer="Ada")
    reltask.run_until_idle()
    assert client.get(f"/receipts/{placed.json()['receipt']}").json() == "Dear Ada, thank you."
