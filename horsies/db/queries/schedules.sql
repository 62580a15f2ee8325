-- fragment: columns
schedule_name AS name, source, definition, config_hash, enabled, paused_at, next_run_at, last_run_at, last_task_id, run_count,
skip_count, error, error_at

-- name: session
-- A locked row delays its own schedule only. A scheduler that stops in the middle of a transaction loses its locks. The server
-- cancels a statement before the scheduler closes the connection.
SELECT set_config('lock_timeout', '500ms', false), set_config('statement_timeout', '12s', false),
       set_config('idle_in_transaction_session_timeout', '10s', false);

-- name: seconds_until_due
SELECT extract(epoch FROM min(next_run_at))::double precision - extract(epoch FROM clock_timestamp())::double precision
  FROM (SELECT next_run_at FROM horsies_schedule_state
         WHERE next_run_at IS NOT NULL AND schedule_name <> ALL (%(except)s::text[])
         ORDER BY next_run_at LIMIT 1) AS next;

-- name: lock_due
-- Lock schedules that are due, the longest due first. Rows that another scheduler has locked are skipped.
SELECT {columns}, now() AS now FROM horsies_schedule_state
 WHERE next_run_at <= now() AND schedule_name <> ALL (%(except)s::text[])
   AND (%(only)s::text IS NULL OR schedule_name = %(only)s)
 ORDER BY next_run_at, schedule_name LIMIT %(limit)s FOR UPDATE SKIP LOCKED;

-- name: advance
-- Set the next slot of schedules and record their runs. A row whose slot is not the expected one stays as it is.
UPDATE horsies_schedule_state AS schedule
   SET next_run_at = advance.next_run_at,
       last_run_at = coalesce(advance.last_run_at, schedule.last_run_at),
       last_task_id = coalesce(advance.last_task_id, schedule.last_task_id),
       run_count = schedule.run_count + advance.runs,
       skip_count = schedule.skip_count + advance.skips,
       error = advance.error,
       error_at = CASE WHEN advance.error IS NOT NULL THEN now() END,
       updated_at = now()
  FROM json_to_recordset(CAST(%(advances)s AS json)) AS advance (
       schedule_name text, slot timestamptz, next_run_at timestamptz, last_run_at timestamptz, last_task_id uuid,
       runs integer, skips integer, error text)
 WHERE schedule.schedule_name = advance.schedule_name AND schedule.next_run_at = advance.slot;

-- name: set_sent_at
-- The `sent_at` of a run is its slot, however late it was sent.
UPDATE horsies_tasks_live AS task SET sent_at = run.slot
  FROM json_to_recordset(CAST(%(runs)s AS json)) AS run (id uuid, slot timestamptz)
 WHERE task.id = run.id;

-- name: record_error
-- Record why this scheduler cannot run a schedule. Its slot stays due, so that another scheduler can run it.
UPDATE horsies_schedule_state SET error = %(error)s, error_at = now(), updated_at = now()
 WHERE schedule_name = %(name)s AND error IS DISTINCT FROM %(error)s;

-- name: unfinished
SELECT id FROM horsies_tasks_live WHERE id = ANY (%(ids)s::uuid[]);

-- name: lock
-- Schedulers that start at the same time write their schedules one after the other.
SELECT pg_advisory_xact_lock(7240118059);

-- name: now
SELECT clock_timestamp();

-- name: find
SELECT {columns}, clock_timestamp() AS now FROM horsies_schedule_state
 WHERE source = 'code' OR schedule_name = ANY (%(names)s::text[])
 ORDER BY schedule_name;

-- name: upsert
-- Insert or update schedules from code, and wake up schedulers.
WITH changed AS (
    INSERT INTO horsies_schedule_state AS stored (schedule_name, source, definition, config_hash, enabled, next_run_at)
    SELECT schedule_name, 'code', definition, config_hash, enabled, next_run_at
      FROM json_to_recordset(CAST(%(rows)s AS json)) AS given (
           schedule_name text, definition text, config_hash text, enabled boolean, next_run_at timestamptz)
    ON CONFLICT (schedule_name) DO UPDATE
       SET definition = excluded.definition, config_hash = excluded.config_hash, enabled = excluded.enabled,
           next_run_at = excluded.next_run_at, error = NULL, error_at = NULL, updated_at = now()
     WHERE stored.source = 'code'
    RETURNING schedule_name
)
SELECT count(*), pg_notify('horsies_schedules', '') FROM changed;

-- name: create
INSERT INTO horsies_schedule_state (schedule_name, source, definition, config_hash, enabled, next_run_at)
VALUES (%(schedule_name)s, 'runtime', %(definition)s, %(config_hash)s, %(enabled)s, %(next_run_at)s)
ON CONFLICT (schedule_name) DO NOTHING
RETURNING pg_notify('horsies_schedules', schedule_name);

-- name: lock_one
-- One schedule, locked so that it is neither run nor changed until the end of the transaction.
SELECT {columns}, clock_timestamp() AS now FROM horsies_schedule_state WHERE schedule_name = %(name)s FOR UPDATE;

-- name: update
UPDATE horsies_schedule_state
   SET definition = %(definition)s, config_hash = %(config_hash)s, enabled = %(enabled)s, next_run_at = %(next_run_at)s,
       error = NULL, error_at = NULL, updated_at = now()
 WHERE schedule_name = %(schedule_name)s
RETURNING pg_notify('horsies_schedules', schedule_name);

-- name: pause
-- A paused schedule has no next slot.
UPDATE horsies_schedule_state SET paused_at = coalesce(paused_at, now()), next_run_at = NULL, updated_at = now()
 WHERE schedule_name = %(name)s
RETURNING pg_notify('horsies_schedules', schedule_name);

-- name: resume
UPDATE horsies_schedule_state
   SET paused_at = NULL, next_run_at = %(next_run_at)s, error = NULL, error_at = NULL, updated_at = now()
 WHERE schedule_name = %(name)s
RETURNING pg_notify('horsies_schedules', schedule_name);

-- name: record_run
-- Record a manual run. It does not change the next slot.
UPDATE horsies_schedule_state
   SET last_run_at = now(), last_task_id = %(task_id)s, run_count = run_count + 1, updated_at = now()
 WHERE schedule_name = %(name)s;

-- name: delete
DELETE FROM horsies_schedule_state WHERE schedule_name = %(name)s RETURNING pg_notify('horsies_schedules', schedule_name);

-- name: list
SELECT {columns}, clock_timestamp() AS now FROM horsies_schedule_state
 WHERE (%(name)s::text IS NULL OR schedule_name = %(name)s) AND schedule_name > %(after)s
   AND (%(q)s::text IS NULL OR strpos(lower(schedule_name), lower(%(q)s)) > 0)
 ORDER BY schedule_name LIMIT %(limit)s::bigint;
