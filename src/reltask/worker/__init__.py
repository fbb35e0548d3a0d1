"""The worker. It uses the store's verbs and a clock, and knows no SQL and no driver.

worker           composes the services, and ends them in the right order
shards           one worker that serves several shards

poller           reclaims, claims, dispatches, and sleeps until the next reason to look
waking           pure: when an idle worker looks, and which of many
places           how much more the worker may take
reclaim          takes expired claims away from their owners

heartbeat        pure: which claims to renew, which to verify, which to give up
beater           the thread that does what `heartbeat` decides

run              one run: its claim, its body, and whether it may continue
execute          a run as a pipeline: decode, run, judge, settle
bodies           async functions, threads and child processes behind one interface
threads          daemon threads for plain functions
process          a body in a child process; `child` is what runs inside it
child            the child's side of `process`
posix            the differences between POSIX and Windows
outcome          pure: how a body ended, and what that means for its job
settle           writes outcomes and recorded steps, in groups
awaited          signals the ends of jobs whose results are waited for

context          what a task body is handed
base_context     what every context has; middleware receives it
transaction      `ctx.transaction()`

durable          the durable calls of one run: `ctx.step`, `ctx.sleep`, `ctx.wait_for`, `ctx.run`
durable_context  these calls as methods of `Context`
durable_sync     the same of `SyncContext`
journal          collects the records of steps, and replays them
parking          where durable calls wait, and when the run is suspended
children         child jobs that a step inserts, and waits for
step             `current_step()`: the step whose function runs here

declare          writes the recurring jobs that the code declares into the table
maintenance      reclaiming, counting, pruning
coordination     decides which worker does the maintenance
"""
