-- Purpose       Divide the ledger into partitions of some days, or change the length of later ones.
-- Precondition  The user owns the ledger.
-- Lock order    The ledger as a whole, until its rows have been read once.
-- Returns       One row without meaning.
-- See           SQL.md: ledger partitions.

select reltask.partition_ledger(:days::integer);
