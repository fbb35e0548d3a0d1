"""Deterministic simulation: the real worker and the real SQL, on virtual time, with faults from a seed.

    seed ─► rng ─┬─► scheduler: which process takes the next step
                 ├─► faults: crash, pause, lost request, lost answer, late request, outage, clock jump, operator
                 └─► workload: which jobs, how long their bodies take, how they end
    every statement ─► checked at once against the rows before and after it
    the end ─► faults stop, workers recover, every due slot must reach a recorded end; then the ledger is checked

A seed replays exactly: one thread, one clock, one source of random numbers, and no iteration over
sets of tasks.

    loop        an event loop that owns the time, and runs one step of one process at a time
    network     what can happen to a call between a worker and its database
    workload    task bodies: quick, long, failing, transactional, blocking, stubborn, poisonous
    actors      bodies in threads and in child processes
    malformed   rows that no worker can run
    durable     random durable functions, and those who send them signals
    faults      what fails, and what operators do meanwhile
    world       processes over one SQLite file, from the first job to the last audit
    invariants  what must hold, during the run and at the end; `durable_invariants`: of durable functions
    mutants     the same worker, deliberately broken: each must be caught; `durable_mutants`: their traps
"""
