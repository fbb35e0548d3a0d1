"""The shop's tasks. `App()` reads the database's address from the settings."""

from reltask import App

app = App()


@app.task(max_attempts=3)
async def send_receipt(customer: str, total: int) -> str:
    return f"Dear {customer}, you paid {total}."


@app.task(cron="0 9 * * mon-fri", timezone="Europe/Berlin")
async def report() -> None:
    print("Good morning!")
