"""What a program does with jobs: enqueue them, ask about them, operate on them.

task         what a decorated function becomes: `enqueue`, `using`, `call`
enqueue      inserts jobs: every enqueue goes through it
job          the handle of a job
client       connects a call, from any loop, thread or process, with a store
transaction  a task's open transaction, which enqueues join
operations   for operators: status, jobs, runs, pause, retry
"""
