"""reltask inside other frameworks, one module or package each. Nothing here is imported by the rest of reltask.

asgi           a lifespan with a worker or a producer: FastAPI, Starlette, Litestar
fastapi        the job that a path names, as a dependency
litestar       a plugin with a worker, and the same dependency
flask          the application's context around each run
pytest_plugin  the fixture `reltask`, which rebinds an app to a temporary database and virtual time
django         a backend for Django's tasks, `manage.py reltask`, migrations and admin pages
"""
