"""The shop's own table."""

from django.db import models


class Order(models.Model):
    """What a customer has ordered."""

    customer = models.CharField(max_length=100)
    booked = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"order {self.pk} of {self.customer}"
