"""The eight lines of the README. Run: reltask worker app:app"""

from reltask import App

app = App("sqlite:///reltask.db")


@app.task
async def hello(name: str) -> None:
    print(f"Hello, {name}!")
