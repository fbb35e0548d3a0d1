-- Purpose       Ask whether reltask's tables exist, without an error if they do not.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row: found, 1 or 0.

SELECT CASE WHEN OBJECT_ID(N'reltask.Meta', N'U') IS NULL THEN 0 ELSE 1 END AS found;
