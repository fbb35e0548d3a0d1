"""The shop's tests: `python manage.py test`. The kit runs tasks in this thread, inside the test's own transaction."""

from django.test import TestCase

from reltask.integrations.django import create_app
from reltask.testing import TestKit
from shop.models import Order
from shop.tasks import broken, send_receipt, unreliable


class OrderTests(TestCase):
    """Each test has its own jobs; time moves by `advance` alone."""

    def setUp(self):
        self.kit = self.enterContext(TestKit(create_app()))

    def test_an_order_is_booked_and_its_receipt_is_sent(self):
        placed = self.client.post("/order/", {"customer": "Ada"}).json()
        self.assertEqual([job.task for job in self.kit.enqueued], ["shop.tasks.book", "shop.tasks.send_receipt"])
        self.kit.run_until_idle()
        self.assertEqual(Order.objects.get(pk=placed["order"]).booked, 1)
        self.assertEqual(self.client.get(f"/result/{placed['receipt']}/").json()["value"], "Ada paid 100")
        self.assertEqual(send_receipt.get_result(placed["receipt"]).kwargs, {"total": 100})

    def test_the_bank_is_asked_again(self):
        result = unreliable.enqueue()
        self.kit.run_until_idle(raise_failures=False)
        result.refresh()
        self.assertEqual((result.status, result.attempts), ("READY", 1))
        self.kit.advance("1m")
        result.refresh()
        self.assertEqual((result.status, result.return_value), ("SUCCESSFUL", 2))

    def test_a_failure_is_kept(self):
        result = broken.enqueue()
        self.kit.run_until_idle(raise_failures=False)
        result.refresh()
        self.assertEqual((result.status, result.errors[0].exception_class), ("FAILED", ValueError))
