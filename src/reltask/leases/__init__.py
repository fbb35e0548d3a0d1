"""Leadership over a named role: `app.lease("reports")`, and the lease that maintenance runs under.

candidacy  pure: whether to try, to beat or to give up
leader     the service that does what `candidacy` decides
handle     what the block of `app.lease(…)` gets
holding    one block, from its first try to its resignation; the methods of the app
metadata   what a holder publishes about its work
"""
