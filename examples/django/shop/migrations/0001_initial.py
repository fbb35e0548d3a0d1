"""The table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first one."""

    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("customer", models.CharField(max_length=100)),
                ("booked", models.IntegerField(default=0)),
            ],
        )
    ]
