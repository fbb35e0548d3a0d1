"""What a program does with jobs: enqueue them, ask about them, operate on them.

task         what a decorated function becomes: `enqueue`, `using`, `call`
enqueue      the one door through which jobs get into the database
job          the handle of a job
client       how a call reaches a store: from any loop, any thread, any process
transaction  a task's open transaction, which enqueues join
operations   what people ask of a running system: status, jobs, runs, pause, retry
"""
