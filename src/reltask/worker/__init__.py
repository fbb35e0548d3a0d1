"""What a worker does between two statements. It knows the store's verbs and a clock: no SQL, no driver.

worker        composes the services, and ends them in the right order
poller        reclaim, claim, dispatch, sleep until there is a reason not to
places        how much more the worker may take
heartbeat     pure: which claims to renew, which to verify, which to give up
beater        the thread that does what `heartbeat` decides
execute       a run as a pipeline: decode, run, judge, settle
bodies        async functions, threads and child processes behind one interface (threads, process, child, posix)
outcome       pure: how a body ended, and what that means for its job
settle        outcomes on their way into the ledger, grouped as commits are
context       what a task body is handed; `transaction` is its `ctx.transaction()`
declare       recurring jobs as the code declares them, written into the table
maintenance   what every database needs and no job asks for; `coordination` decides which worker does it
"""
