from web import send_receipt, web

from reltask.testing import TestKit

client = web.test_client()


def test_an_order_sends_a_receipt(reltask: TestKit) -> None:
    placed = client.post("/orders", data={"customer": "Ada"})
    reltask.assert_enqueued(send_receipt, customer="Ada")
    reltask.run_until_idle()
    assert client.get(f"/receipts/{placed.get_json()['receipt']}").text == "Dear Ada, thank you. The corner shop"
