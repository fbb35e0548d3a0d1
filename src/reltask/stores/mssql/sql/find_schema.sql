-- Purpose       whether there are any reltask tables: a question that fails nowhere.
-- Precondition  none; reads only.
-- Lock order    no locks.

SELECT CASE WHEN OBJECT_ID(N'reltask.Meta', N'U') IS NULL THEN 0 ELSE 1 END AS found;
