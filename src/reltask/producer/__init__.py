"""What a program does with jobs: enqueue them, ask about them, operate on them.

task         what a decorated function becomes: `enqueue`, `using`, `call`
options      what `using(…)` can change
enqueue      inserts jobs: every enqueue goes through it
bulk         many jobs at once, in batches
keys         jobs whose key is taken, by another job or by a unique task
client       connects a call, from any loop, thread or process, with a store; decides in whose transaction it is sent
portal       the private event loop for callers whose own loop has no store
transaction  a task's open transaction, which enqueues join
job          the handle of a job: what can be read of it and done to it
result       waits for the ends of jobs
cancel       cancels jobs, and the children that they leave
signal       a signal's name and type
schedules    the recurring jobs that an app's code declares
replacing    changes a schedule that exists
limits       limits at run time: what is in use, and changing them
pauses       pausing queues and tasks
operations   for operators: status, jobs, runs, workers, leases, statistics
audit        runs an audit, part by part
shown        what views show of payloads
"""
