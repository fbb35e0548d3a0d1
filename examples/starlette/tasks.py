"""The shop's tasks."""

from reltask import App

app = App("sqlite:///shop.db")


@app.task(max_attempts=3)
async def send_receipt(customer: str) -> str:
    return f"Dear {customer}, thank you."
