"""The shop's addresses, and the admin pages."""

from django.contrib import admin
from django.urls import path

from shop import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("order/", views.order),
    path("result/<result_id>/", views.result),
]
