-- Purpose       Read all that may have come for a slot, and the number of marks folded so far.
-- Precondition  None.
-- Lock order    Locks nothing. Rows that a session is still writing are skipped: they have not come
--               yet.
-- Returns       No rows if the job is gone or in another slot. Otherwise one row per signal that
--               waits, in the order of arrival, and one per end of a child; or one row whose kind
--               is null. Each begins with wake_seq.
-- See           SQL.md: T-SQL batch, skip locked, mark.
--
-- WakeSeq is read first, by a statement of its own. What comes after that is folded after it, so
-- WakeSeq changes, and suspend_jobs.sql notices; what was folded before is read. In the other
-- order, or in one statement whose order the server chooses, a signal could come and be folded
-- between the two reads: the run would suspend with its number, and sleep on.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @job_id uniqueidentifier = :job_id,
        @slot_no bigint = :slot_no,
        @wake_seq bigint;

BEGIN TRY
    SELECT @wake_seq = WakeSeq
    FROM reltask.Jobs WITH (INDEX (PK_Jobs))
    WHERE Id = @job_id AND SlotNo = @slot_no;

    SELECT header.wake_seq, found.Kind AS kind, found.Name AS name, found.SignalId AS signal_id,
           found.Nth AS nth, found.ChildId AS child_id, found.Outcome AS outcome,
           found.Value AS value, found.Error AS error, found.SentAt AS sent_at
    FROM (SELECT @wake_seq AS wake_seq) AS header
    LEFT JOIN (
        SELECT N'signal' AS Kind, Name, Id AS SignalId, CAST(NULL AS int) AS Nth,
               CAST(NULL AS uniqueidentifier) AS ChildId, CAST(NULL AS nvarchar(16)) AS Outcome,
               Value, CAST(NULL AS nvarchar(max)) AS Error, SentAt, Seq
        FROM reltask.Signals WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE JobId = @job_id AND SlotNo = @slot_no AND ConsumedBy IS NULL
        UNION ALL
        SELECT N'end', Step, NULL, Nth, JobId, Outcome, Value, Error, NULL, NULL
        FROM reltask.ChildEnds WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE ParentId = @job_id AND SlotNo = @slot_no
    ) AS found ON 1 = 1
    WHERE header.wake_seq IS NOT NULL
    ORDER BY found.Kind, found.Seq, found.Name, found.Nth;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
