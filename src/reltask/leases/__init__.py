"""Leadership over a named role: `app.lease("reports")`, and the lease that maintenance runs under.

candidacy  pure: decides whether to try, to renew or to give up
leader     the service that carries out what `candidacy` decides
handle     the `Lease` that the block of `app.lease(…)` receives
holding    one block, from its first try to its resignation; the methods of the app
metadata   what a holder publishes about its work
"""
