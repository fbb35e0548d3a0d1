"""The dashboard: server-rendered pages over the store's own reads. Nothing here is imported until it is asked for.

    browser ──► access.py ──► pages.py: one function per screen ──► reader.py ──► the store, one verb per screen
       ▲         who may       actions.py: five actions,              │
       │         do what       each recorded, each fenced             │
       └── live.py: one read every two seconds per process, for all viewers

dashboard.py   the ASGI application, and what it is made of
access.py      who may read and who may act; headers that browsers enforce; forged requests
reader.py      what the pages read, on a thread and a connection of their own
live.py        the overview as a stream of events
pages.py       the screens; job_page.py: the page of one job; forms.py: the address of a list
actions.py     retry, cancel, run now, pause and resume, signal
bulk.py        all jobs that match a filter, confirmed one by one
commands.py    the commands that do the same in a terminal
words.py       times, lengths and numbers as people read them
wsgi.py        the same application for Flask and Django without ASGI
"""
