"""Deterministic simulation: the real engine and the real SQL, on virtual time, with faults from a seed.

    seed ─► rng ─┬─► scheduler: which process takes the next step
                 ├─► faults: crash, pause, lost request, lost answer, late request, outage, clock jump, operator
                 └─► workload: which jobs, how long their bodies take, how they end
    every statement ─► checked at once against the rows before and after it
    the end ─► faults stop, workers heal, everything due must come to its recorded end; then the whole ledger is checked

A seed replays exactly: one thread, one clock, one source of random numbers, and no iteration over sets of tasks.

    loop        an event loop that owns the time, and runs one step of one process at a time
    network     what can happen to a call between a worker and its database
    workload    task bodies: quick, long, failing, transactional, blocking, stubborn, poisonous
    faults      what goes wrong, and what operators do meanwhile
    world       processes over one SQLite file, from the first job to the last audit
    invariants  what must hold, while it runs and at the end
    mutants     the same engine, deliberately broken: each must be caught
"""
