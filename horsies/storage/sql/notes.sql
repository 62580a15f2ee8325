-- name: report
-- How far tasks are. What an earlier run of a task says too late is left out.
INSERT INTO horsies_progress AS known (task_id, claim_seq, done, total, message, at)
SELECT task_id, claim_seq, done, total, message, at
  FROM json_to_recordset(CAST(%(reports)s AS json)) AS said (
       task_id uuid, claim_seq integer, done double precision, total double precision, message text, at timestamptz)
 ORDER BY task_id
ON CONFLICT (task_id) DO UPDATE
   SET claim_seq = excluded.claim_seq, done = excluded.done, total = excluded.total, message = excluded.message,
       at = excluded.at
 WHERE known.claim_seq <= excluded.claim_seq;

-- name: log
-- What tasks have logged; of each run the last lines are kept. Lines that are written again, after a reply that was lost,
-- are there once.
WITH said AS MATERIALIZED (
    SELECT * FROM json_to_recordset(CAST(%(lines)s AS json)) AS said (
        task_id uuid, claim_seq integer, seq integer, attempt integer, at timestamptz, level text, logger text, message text)
), outdated AS (
    DELETE FROM horsies_task_logs AS line
     USING (SELECT task_id, claim_seq, max(seq) AS seq FROM said GROUP BY task_id, claim_seq) AS last
     WHERE line.task_id = last.task_id AND line.claim_seq = last.claim_seq AND line.seq <= last.seq - %(keep)s
)
INSERT INTO horsies_task_logs (task_id, claim_seq, seq, attempt, at, level, logger, message)
SELECT task_id, claim_seq, seq, attempt, at, level, logger, message FROM said
ON CONFLICT DO NOTHING;

-- name: progress
SELECT done, total, message, at FROM horsies_progress WHERE task_id = %(id)s;

-- name: lines
-- What a task has logged, first line first.
SELECT attempt, seq, at, level, logger, message FROM horsies_task_logs
 WHERE task_id = %(id)s
 ORDER BY claim_seq, seq;
