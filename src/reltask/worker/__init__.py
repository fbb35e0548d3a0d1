"""The worker. It uses the store's verbs and a clock, and knows no SQL and no driver.

worker        composes the services, and ends them in the right order
poller        reclaims, claims, dispatches, and sleeps until the next reason to look
places        how much more the worker may take
heartbeat     pure: which claims to renew, which to verify, which to give up
beater        the thread that does what `heartbeat` decides
execute       a run as a pipeline: decode, run, judge, settle
bodies        async functions, threads and child processes behind one interface (threads, process, child, posix)
outcome       pure: how a body ended, and what that means for its job
settle        writes outcomes into the ledger, in groups
context       what a task body is handed; `transaction` is its `ctx.transaction()`
declare       writes the recurring jobs that the code declares into the table
maintenance   reclaiming, counting, pruning; `coordination` decides which worker does it
"""
