"""Two views: one places an order, one reads a task's result."""

from django.db import transaction
from django.http import JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from shop.models import Order
from shop.tasks import book, send_receipt


@csrf_exempt
@require_POST
def order(request):
    """The order and its task commit together; there is no need for `transaction.on_commit`."""
    with transaction.atomic():
        placed = Order.objects.create(customer=request.POST["customer"])
        booking = book.enqueue(placed.pk)
    receipt = send_receipt.enqueue(placed.customer, total=100)
    return JsonResponse({"order": placed.pk, "receipt": receipt.id, "booking": booking.id})


def result(_request, result_id):
    """How far a receipt has come."""
    found = send_receipt.get_result(result_id)
    return JsonResponse({"status": found.status, "value": found.return_value if found.is_finished else None})
