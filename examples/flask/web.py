"""A shop: each run of a task has the application's context, so that `current_app` and extensions work in it."""

from uuid import UUID

from flask import Flask, current_app, request

from reltask import App
from reltask.integrations.flask import init_app

web = Flask(__name__)
web.config["SHOP"] = "The corner shop"
app = App("sqlite:///shop.db")
init_app(web, app)


@app.task(max_attempts=3)
def send_receipt(customer: str) -> str:
    return f"Dear {customer}, thank you. {current_app.config['SHOP']}"


@web.post("/orders")
def order() -> tuple[dict[str, str], int]:
    job = send_receipt.enqueue_sync(request.form["customer"])
    return {"receipt": str(job.id)}, 202


@web.get("/receipts/<uuid:job_id>")
def receipt(job_id: UUID) -> str:
    return send_receipt.job(id=job_id).result_sync(timeout="10s")
