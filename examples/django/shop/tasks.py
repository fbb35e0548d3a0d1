"""The shop's tasks. Django's own decorator declares them, too; that of Django 6.0 takes none of reltask's options."""

from django.db.models import F

from reltask.integrations.django import task
from shop.models import Order


@task(queue_name="mail", priority=50)
def send_receipt(customer, *, total):
    """A plain task; a worker calls it in a thread."""
    return f"{customer} paid {total}"


@task(takes_context=True)
def book(context, order_id):
    """What the ORM writes in the block commits together with the task's completion: once, or not at all."""
    with context.atomic():
        Order.objects.filter(pk=order_id).update(booked=F("booked") + 1)


@task
async def look_up(name):
    """A coroutine runs on the worker's event loop."""
    return {"name": name, "found": True}


@task(max_attempts=2, backoff="1s", takes_context=True)
def unreliable(context):
    """Fails at its first attempt; reltask tries again."""
    if context.attempt < 2:
        raise ConnectionError("the bank does not answer")
    return context.attempt


@task(max_attempts=1)
def broken():
    """Fails for good."""
    raise ValueError("no such order")


@task(cron="0 3 * * *", timezone="Europe/Berlin")
def clean_up():
    """A recurring task: Django's interface has none."""
