"""What a program does with jobs: enqueue them, ask about them, operate on them.

task         what a decorated function becomes: `enqueue`, `using`, `call`
enqueue      inserts jobs: every enqueue goes through it
sending      where a write goes: the user's transaction, a task's open block, or a statement of its own
job          the handle of a job: what can be read of it and done to it
result       waits for the ends of jobs
shown        what views show of payloads
signal       a signal's name and type
client       connects a call, from any loop, thread or process, with a store
transaction  a task's open transaction, which enqueues join
replacing    changes a schedule that exists
pauses       pausing queues and tasks
operations   for operators: status, jobs, runs, workers, leases, statistics
"""
