-- What operators do. A suspended queue is claimed from by nobody; the empty name stands for all queues.
CREATE TABLE horsies_suspensions (
    queue_name   text        PRIMARY KEY,
    suspended_at timestamptz NOT NULL DEFAULT now(),
    suspended_by text        NOT NULL
);

-- Who did what, to how many tasks.
CREATE TABLE horsies_actions (
    id       bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    acted_at timestamptz NOT NULL DEFAULT now(),
    actor    text        NOT NULL,
    action   text        NOT NULL,
    subject  text        NOT NULL,
    tasks    bigint      NOT NULL DEFAULT 0
);
CREATE INDEX horsies_actions_age ON horsies_actions (acted_at);

-- A failed task that is sent through once more has a fresh retry budget, and its attempts are counted on.
ALTER TABLE horsies_tasks ADD COLUMN earlier_attempts smallint NOT NULL DEFAULT 0;
ALTER TABLE horsies_attempts ADD COLUMN requeued_at timestamptz;
CREATE OR REPLACE VIEW horsies_task_attempts AS
SELECT task_id, attempt, outcome, requeued_at IS NULL AS will_retry, started_at, finished_at, error_code, error_message,
       failed_reason, worker_id, worker_hostname, worker_pid, worker_process_name
  FROM horsies_attempts
UNION ALL
SELECT id, earlier_attempts + retry_count + 1, CASE status WHEN 'COMPLETED' THEN 'COMPLETED' ELSE 'FAILED' END, false,
       started_at, terminal_at, error_code, result::json -> 'err' ->> 'message',
       failed_reason, claimed_by_worker_id, worker_hostname, worker_pid, worker_process_name
  FROM horsies_tasks
 WHERE NOT live AND started_at IS NOT NULL AND status IN ('COMPLETED', 'FAILED', 'CANCELLED');

-- Failures are few, and looked for among very many tasks that went well.
CREATE INDEX horsies_tasks_failed ON horsies_tasks_history (terminal_at, id) WHERE status = 'FAILED';

-- What ended when: days are small enough to be walked, and this index costs next to nothing to keep.
CREATE INDEX horsies_tasks_ended ON horsies_tasks_history USING brin (terminal_at) WITH (pages_per_range = 32);

-- Drop the days of history that ended before this moment; gives back how many. Dropping one locks all of history for a
-- moment. While somebody reads it, everyone after us would wait as long as we do, so we give up instead: the next call
-- drops it.
CREATE FUNCTION horsies_drop_history(before timestamptz) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '100ms' AS $$
DECLARE
    part text;
    dropped integer := 0;
BEGIN
    FOR part IN
        SELECT child.relname FROM pg_catalog.pg_inherits AS link
          JOIN pg_catalog.pg_class AS child ON child.oid = link.inhrelid
         WHERE link.inhparent = 'horsies_tasks_history'::pg_catalog.regclass
           AND child.relname ~ '^horsies_tasks_\d{8}$'
           AND pg_catalog.to_date(pg_catalog.right(child.relname, 8), 'YYYYMMDD')::timestamp AT TIME ZONE 'UTC'
               <= horsies_drop_history.before - interval '1 day'
         ORDER BY child.relname
    LOOP
        BEGIN
            EXECUTE pg_catalog.format('DROP TABLE %I', part);
            dropped := dropped + 1;
        EXCEPTION WHEN lock_not_available THEN
            RETURN dropped;
        END;
    END LOOP;
    RETURN dropped;
END $$;
REVOKE EXECUTE ON FUNCTION horsies_drop_history FROM PUBLIC;
