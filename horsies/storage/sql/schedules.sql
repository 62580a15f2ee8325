-- name: session
-- A row that somebody keeps locked holds up its own schedule only, and a scheduler that was stopped in the middle of a
-- transaction loses it to others. A statement gives up before we hang up on it.
SELECT set_config('lock_timeout', '500ms', false), set_config('statement_timeout', '12s', false),
       set_config('idle_in_transaction_session_timeout', '10s', false);

-- name: pause_until_due
-- Seconds until the next slot, negative when it is due; NULL when there is none.
SELECT extract(epoch FROM min(next_run_at) - clock_timestamp())::double precision
  FROM (SELECT next_run_at FROM horsies_schedule_state
         WHERE next_run_at IS NOT NULL AND schedule_name <> ALL (%(aside)s::text[])
         ORDER BY next_run_at
         LIMIT 1) AS next;

-- name: due
-- Take schedules whose slot has come, those that have waited longest first. Others' are passed over.
SELECT schedule_name, source, definition, next_run_at, last_task_id, now()
  FROM horsies_schedule_state
 WHERE next_run_at <= now() AND schedule_name <> ALL (%(aside)s::text[])
   AND (%(only)s::text IS NULL OR schedule_name = %(only)s)
 ORDER BY next_run_at, schedule_name
 LIMIT %(limit)s
   FOR UPDATE SKIP LOCKED;

-- name: move_on
-- What has come of a slot. Only who still finds the slot where it was may move it on.
UPDATE horsies_schedule_state AS schedule
   SET next_run_at = moved.next_run_at,
       last_run_at = coalesce(moved.last_run_at, schedule.last_run_at),
       last_task_id = coalesce(moved.last_task_id, schedule.last_task_id),
       run_count = schedule.run_count + moved.runs,
       skip_count = schedule.skip_count + moved.skips,
       error = moved.error,
       error_at = CASE WHEN moved.error IS NOT NULL THEN now() END,
       updated_at = now()
  FROM json_to_recordset(CAST(%(moved)s AS json)) AS moved (
       schedule_name text, slot timestamptz, next_run_at timestamptz, last_run_at timestamptz, last_task_id uuid,
       runs integer, skips integer, error text)
 WHERE schedule.schedule_name = moved.schedule_name AND schedule.next_run_at = moved.slot;

-- name: date_runs
-- A run is dated by its slot, however late it was sent.
UPDATE horsies_tasks_live AS task SET sent_at = run.slot
  FROM json_to_recordset(CAST(%(runs)s AS json)) AS run (id uuid, slot timestamptz)
 WHERE task.id = run.id;

-- name: complain
-- Write down why a schedule cannot be run here, and leave its slot to others.
UPDATE horsies_schedule_state SET error = %(error)s, error_at = now(), updated_at = now()
 WHERE schedule_name = %(name)s AND error IS DISTINCT FROM %(error)s;

-- name: living
-- Which of these runs have not ended.
SELECT id FROM horsies_tasks_live WHERE id = ANY (%(ids)s::uuid[]);

-- name: lock
-- Schedulers that start at once write their schedules down one after the other.
SELECT pg_advisory_xact_lock(7240118059);

-- name: now
SELECT clock_timestamp();

-- name: known
-- The schedules that are of the code, or of these names.
SELECT schedule_name, source, definition, config_hash, enabled, paused_at IS NOT NULL, next_run_at, clock_timestamp()
  FROM horsies_schedule_state
 WHERE source = 'code' OR schedule_name = ANY (%(names)s::text[])
 ORDER BY schedule_name;

-- name: write_down
-- Write down what the code says of its schedules; those who sleep are woken.
WITH said AS (
    INSERT INTO horsies_schedule_state AS known
           (schedule_name, source, definition, config_hash, enabled, next_run_at)
    SELECT schedule_name, 'code', definition, config_hash, enabled, next_run_at
      FROM json_to_recordset(CAST(%(rows)s AS json)) AS said (
           schedule_name text, definition text, config_hash text, enabled boolean, next_run_at timestamptz)
    ON CONFLICT (schedule_name) DO UPDATE
       SET definition = excluded.definition, config_hash = excluded.config_hash, enabled = excluded.enabled,
           next_run_at = excluded.next_run_at, error = NULL, error_at = NULL, updated_at = now()
     WHERE known.source = 'code'
    RETURNING schedule_name
)
SELECT count(*), pg_notify('horsies_schedules', '') FROM said;

-- name: create
INSERT INTO horsies_schedule_state (schedule_name, source, definition, config_hash, enabled, next_run_at)
VALUES (%(name)s, 'runtime', %(definition)s, %(config_hash)s, %(enabled)s, %(next_run_at)s)
ON CONFLICT (schedule_name) DO NOTHING
RETURNING pg_notify('horsies_schedules', schedule_name);

-- name: hold
-- One schedule, so that nobody runs or changes it meanwhile.
SELECT schedule_name, source, definition, config_hash, enabled, paused_at IS NOT NULL, next_run_at, clock_timestamp()
  FROM horsies_schedule_state WHERE schedule_name = %(name)s FOR UPDATE;

-- name: change
UPDATE horsies_schedule_state
   SET definition = %(definition)s, config_hash = %(config_hash)s, enabled = %(enabled)s, next_run_at = %(next_run_at)s,
       error = NULL, error_at = NULL, updated_at = now()
 WHERE schedule_name = %(name)s
RETURNING pg_notify('horsies_schedules', schedule_name);

-- name: pause
-- Its slots pass by from here on.
UPDATE horsies_schedule_state SET paused_at = coalesce(paused_at, now()), next_run_at = NULL, updated_at = now()
 WHERE schedule_name = %(name)s
RETURNING pg_notify('horsies_schedules', schedule_name);

-- name: resume
UPDATE horsies_schedule_state
   SET paused_at = NULL, next_run_at = %(next_run_at)s, error = NULL, error_at = NULL, updated_at = now()
 WHERE schedule_name = %(name)s
RETURNING pg_notify('horsies_schedules', schedule_name);

-- name: ran
-- A run out of turn: the slots stay where they are.
UPDATE horsies_schedule_state
   SET last_run_at = now(), last_task_id = %(task_id)s, run_count = run_count + 1, updated_at = now()
 WHERE schedule_name = %(name)s;

-- name: delete
DELETE FROM horsies_schedule_state WHERE schedule_name = %(name)s
RETURNING pg_notify('horsies_schedules', schedule_name);

-- name: list
-- One of them, or those after a name whose names have some words in them, so many or all.
SELECT schedule_name, source, definition, enabled, paused_at, next_run_at, last_run_at, last_task_id, run_count,
       skip_count, error, error_at
  FROM horsies_schedule_state
 WHERE (%(name)s::text IS NULL OR schedule_name = %(name)s) AND schedule_name > %(after)s
   AND (%(q)s::text IS NULL OR strpos(lower(schedule_name), lower(%(q)s)) > 0)
 ORDER BY schedule_name
 LIMIT %(limit)s::bigint;
