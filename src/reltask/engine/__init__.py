"""The engine: what a worker does between two statements. It knows the store's verbs and the clock; no SQL, no driver.

service     start, stop and a loop, once for all
worker      composes the others, and drains them in the right order
poller      reclaim, claim, dispatch, sleep until there is a reason not to
heartbeat   pure: which claims to renew, which to verify, which to give up
beater      the thread that does what `heartbeat` decides
execute     one run as a pipeline: decode, run, judge, settle
bodies      async functions, threads and child processes behind one face
settle      outcomes on their way into the ledger, grouped as commits are
context     what a task body is handed
"""
