-- fragment: held
-- The tasks of `given` that are still their worker's. The lock holds until the commit: nobody takes a task over meanwhile.
SELECT task.id, task.claim_seq FROM horsies_tasks_live AS task
 WHERE task.id = ANY (ARRAY (SELECT DISTINCT task_id FROM given)) AND task.status = 'RUNNING' AND {is_owned}
 ORDER BY task.id FOR SHARE OF task

-- name: store
-- Store steps that have ended, those of tasks that are still their worker's; return these tasks. A stored step never changes:
-- if a statement is repeated because its reply was lost, the first result stays.
WITH given AS MATERIALIZED (
    SELECT DISTINCT ON (task_id, name) *
      FROM json_to_recordset(CAST(%(ended_steps)s AS json)) AS given (
           task_id uuid, claim_seq integer, name text, kind text, attempt integer, seconds double precision, result text)
     ORDER BY task_id, name
), held AS MATERIALIZED (
    {held}
), stored AS (
    INSERT INTO horsies_steps AS known (task_id, name, kind, claim_seq, attempt, started_at, ended_at, result)
    SELECT given.task_id, given.name, given.kind, given.claim_seq, given.attempt,
           now() - make_interval(secs => given.seconds), now(), given.result
      FROM given JOIN held ON held.id = given.task_id AND held.claim_seq = given.claim_seq
    ON CONFLICT (task_id, name) DO UPDATE
       SET kind = excluded.kind, claim_seq = excluded.claim_seq, attempt = excluded.attempt,
           started_at = least(known.started_at, excluded.started_at), ended_at = excluded.ended_at,
           result = excluded.result
     WHERE known.ended_at IS NULL
)
SELECT id::text, claim_seq FROM held;

-- name: load
-- Return the steps of tasks that are still their worker's, each with the ended tasks that an open step has called. A task
-- without steps has one row without a name. Tasks are found by an array of their ids, as `is_given` says.
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset(CAST(%(tasks)s AS json)) AS given (task_id uuid, claim_seq integer)
), task AS MATERIALIZED (
    SELECT task.id, task.claim_seq FROM horsies_tasks_live AS task
     WHERE task.id = ANY (ARRAY (SELECT task_id FROM given)) AND task.status = 'RUNNING' AND {is_owned}
)
SELECT task.id::text AS task_id, task.claim_seq, step.name, coalesce(step.kind, '') AS kind,
       step.ended_at IS NOT NULL AS has_ended, step.result,
       CASE WHEN step.open_calls = 0 AND step.ended_at IS NULL THEN
           (SELECT json_agg(ended.result::json ORDER BY call.place)
              FROM unnest(step.calls) WITH ORDINALITY AS call (id, place)
              LEFT JOIN LATERAL (SELECT result FROM horsies_tasks AS ended
                                  WHERE ended.id = call.id AND NOT ended.live AND ended.terminal_at >= step.started_at
                                  ORDER BY ended.terminal_at DESC LIMIT 1) AS ended ON true)::text END AS calls
  FROM task JOIN given ON given.task_id = task.id AND given.claim_seq = task.claim_seq
  LEFT JOIN horsies_steps AS step ON step.task_id = task.id;

-- name: lock_to_park
-- Lock tasks before they are parked, in a statement of its own: the next one then sees the signals that were given while this
-- one waited.
SELECT id FROM horsies_tasks_live WHERE id = ANY (%(ids)s::uuid[]) ORDER BY id FOR UPDATE;

-- name: park
-- Park tasks that are still their worker's: each gives back its claim, and waits in a step that has not ended. A step that it
-- waited in before keeps its time and its calls. Without a step, the task is due at once. A signal that was given already ends the step, and the task is due now. The
-- expiry of a parked task is removed, because it has started in time. A task that is missing from the answer was cancelled, or
-- is no longer ours.
WITH given AS MATERIALIZED (
    SELECT DISTINCT ON (id) *
      FROM json_to_recordset(CAST(%(parks)s AS json)) AS given (id uuid, claim_seq integer, attempt integer, step json)
     CROSS JOIN LATERAL json_to_record(given.step) AS asked (
           name text, kind text, seconds double precision, calls json)
     ORDER BY id
), task AS MATERIALIZED (
    SELECT task.id, task.claim_seq FROM horsies_tasks_live AS task
     WHERE task.id = ANY (ARRAY (SELECT id FROM given)) AND task.status = 'RUNNING' AND {is_owned}
       AND task.cancel_asked_at IS NULL
), held AS MATERIALIZED (
    SELECT given.*, step.name IS NULL AS is_new, signal.value AS signal,
           CASE WHEN step.name IS NULL THEN now() + make_interval(secs => given.seconds) ELSE step.due_at END AS until
      FROM given
      JOIN task ON task.id = given.id AND task.claim_seq = given.claim_seq
      LEFT JOIN horsies_steps AS step ON step.task_id = given.id AND step.name = given.name AND step.kind = given.kind
      LEFT JOIN horsies_signals AS signal
        ON given.kind = 'wait' AND signal.task_id = given.id AND signal.name = given.name
), call AS MATERIALIZED (
    SELECT held.id AS parent_id, held.name AS parent_step, call.*
      FROM held CROSS JOIN LATERAL ROWS FROM (json_to_recordset(held.calls) AS (
           id uuid, task_name text, queue_name text, is_async boolean, priority smallint, kwargs text, eta timestamptz,
           delay_seconds double precision, good_until timestamptz, timeout_ms integer, max_retries smallint,
           task_options text, tags text[], rate_key text, cost real)) WITH ORDINALITY AS call (
           id, task_name, queue_name, is_async, priority, kwargs, eta, delay_seconds, good_until, timeout_ms, max_retries,
           task_options, tags, rate_key, cost, place)
     WHERE held.is_new AND held.calls IS NOT NULL
), sent AS (
    INSERT INTO horsies_tasks_live (id, task_name, queue_name, is_async, priority, kwargs, enqueued_at, good_until,
                                    timeout_ms, max_retries, task_options, tags, rate_key, cost, parent_id,
                                    parent_step)
    SELECT id, task_name, queue_name, is_async, priority, kwargs,
           coalesce(eta, now() + make_interval(secs => coalesce(delay_seconds, 0))), good_until, timeout_ms, max_retries,
           task_options, tags, coalesce(rate_key, ''), cost, parent_id, parent_step
      FROM call
), step AS (
    INSERT INTO horsies_steps AS known (task_id, name, kind, claim_seq, attempt, due_at, open_calls, calls, ended_at, result)
    SELECT held.id, held.name, held.kind, held.claim_seq, held.attempt, held.until, sum(1) FILTER (WHERE call.id IS NOT NULL),
           array_agg(call.id ORDER BY call.place) FILTER (WHERE call.id IS NOT NULL),
           CASE WHEN held.signal IS NOT NULL THEN now() END, '{"ok":' || held.signal || '}'
      FROM held LEFT JOIN call ON call.parent_id = held.id
     WHERE held.name IS NOT NULL
     GROUP BY held.id, held.name, held.kind, held.claim_seq, held.attempt, held.until, held.signal
    ON CONFLICT (task_id, name) DO UPDATE
       SET kind = excluded.kind, claim_seq = excluded.claim_seq, attempt = excluded.attempt,
           due_at = excluded.due_at, calls = coalesce(excluded.calls, known.calls),
           open_calls = CASE WHEN excluded.calls IS NOT NULL THEN excluded.open_calls
                        ELSE (SELECT count(*) FROM horsies_tasks_live AS child WHERE child.id = ANY (known.calls)) END,
           ended_at = coalesce(known.ended_at, excluded.ended_at), result = coalesce(known.result, excluded.result)
    RETURNING task_id, due_at, ended_at IS NULL AND coalesce(open_calls, 1) > 0 AS is_open
), parked AS (
    UPDATE horsies_tasks_live AS task
       SET status = 'PENDING', claim_seq = task.claim_seq + 1, claimed_by_worker_id = NULL, claimed_at = NULL,
           started_at = NULL, worker_pid = NULL, good_until = NULL, next_retry_at = NULL, crash_count = 0,
           unknown_since = NULL, unknown_until = NULL,
           parked_at = CASE WHEN outcome.is_open THEN now() END,
           enqueued_at = CASE WHEN NOT outcome.is_open THEN now() ELSE coalesce(outcome.due_at, '9999-01-01') END
      FROM (SELECT held.id, coalesce(step.is_open, false) AS is_open, step.due_at
              FROM held LEFT JOIN step ON step.task_id = held.id) AS outcome
     WHERE task.id = outcome.id AND task.id = ANY (ARRAY (SELECT id FROM held))
    RETURNING task.id, task.queue_name, outcome.is_open, task.enqueued_at
), woken AS (
    -- A task that need not wait is due now.
    SELECT count(pg_notify(horsies_queue_channel(queue_name), ''))
      FROM (SELECT DISTINCT queue_name FROM parked WHERE NOT is_open) AS touched
)
SELECT id::text, CASE WHEN is_open AND enqueued_at < now() + interval '1 day'
                      THEN extract(epoch FROM enqueued_at - now())::double precision END AS seconds
  FROM parked CROSS JOIN woken;

-- name: wake_due
-- Let parked tasks go on whose time has come: a sleep has ended, or a signal was not given in time. Tasks that are being parked
-- or signalled are skipped, and found the next time.
WITH due AS MATERIALIZED (
    SELECT id FROM horsies_tasks_live
     WHERE parked_at IS NOT NULL AND follows IS NULL AND enqueued_at <= now()
     ORDER BY enqueued_at, id LIMIT 1000 FOR UPDATE SKIP LOCKED
), ended AS (
    UPDATE horsies_steps AS step
       SET ended_at = now(), result = CASE step.kind WHEN 'sleep' THEN '{"ok":null}' ELSE %(timeout)s END
     WHERE step.task_id = ANY (ARRAY (SELECT id FROM due)) AND step.ended_at IS NULL AND step.kind IN ('sleep', 'wait')
), woken AS (
    UPDATE horsies_tasks_live AS task SET parked_at = NULL
     WHERE task.id = ANY (ARRAY (SELECT id FROM due))
    RETURNING task.queue_name
), notified AS (
    SELECT count(pg_notify(horsies_queue_channel(queue_name), ''))
      FROM (SELECT DISTINCT queue_name FROM woken) AS touched
)
SELECT (SELECT count(*) FROM woken) FROM notified;

-- name: have_steps
-- Return which of these tasks have a stored step.
SELECT DISTINCT task_id::text FROM horsies_steps WHERE task_id = ANY (%(ids)s::uuid[]);

-- name: signal
SELECT horsies_signal(%(id)s::uuid, %(name)s::text, %(value)s::json);

-- name: waits
-- List the waits for a signal of parked tasks, the longest first, of the `most` parked tasks that go on last: a wait without a
-- timeout goes on at infinity.
SELECT step.task_id::text, left(task.task_name, 300) AS task_name, left(step.name, 300) AS name, step.started_at, step.due_at
  FROM (SELECT id, task_name FROM horsies_tasks_live WHERE parked_at IS NOT NULL AND follows IS NULL
         ORDER BY enqueued_at DESC, id DESC LIMIT %(most)s) AS task
  JOIN horsies_steps AS step ON step.task_id = task.id
 WHERE step.kind = 'wait' AND step.ended_at IS NULL
 ORDER BY step.started_at, step.task_id LIMIT %(limit)s;

-- name: steps
-- Return the steps of a task in the order in which they began.
SELECT name, kind, attempt, started_at, ended_at, due_at, open_calls,
       coalesce(calls, '{}')::text[] AS calls, left(result, %(shown)s) AS result
  FROM horsies_steps WHERE task_id = %(id)s ORDER BY started_at, ended_at NULLS LAST, name;

-- name: signals
-- Return the signals that a task was given, in order.
SELECT name, left(value, %(shown)s) AS value, sent_at FROM horsies_signals WHERE task_id = %(id)s ORDER BY sent_at, name;

-- name: parent
SELECT parent_id::text AS task_id, left(parent_step, 300) AS step FROM horsies_tasks
 WHERE id = %(id)s AND parent_id IS NOT NULL ORDER BY live DESC LIMIT 1;

-- name: children
-- Return the tasks that the steps of a task have called, in the order of the calls.
SELECT task.id::text AS task_id, step.name AS step, left(task.task_name, 300) AS task_name, left(task.status, 300) AS status,
       task.parked_at IS NOT NULL AS is_parked
  FROM horsies_steps AS step
 CROSS JOIN LATERAL unnest(step.calls) WITH ORDINALITY AS call (id, place)
 CROSS JOIN LATERAL (SELECT * FROM horsies_tasks AS child
                      WHERE child.id = call.id AND (child.live OR child.terminal_at >= step.started_at)
                      ORDER BY child.live DESC LIMIT 1) AS task
 WHERE step.task_id = %(id)s
 ORDER BY step.started_at, call.place LIMIT %(limit)s;

-- name: forget
-- Forget a stored step of a failed task and all that ended after it began; return their names. Their signals go, too: the task
-- waits for new ones.
WITH first AS MATERIALIZED (
    SELECT step.started_at FROM horsies_steps AS step
     WHERE step.task_id = %(id)s AND step.name = %(name)s
       AND NOT EXISTS (SELECT FROM horsies_tasks_live AS task WHERE task.id = %(id)s)
), gone AS (
    DELETE FROM horsies_steps AS step USING first
     WHERE step.task_id = %(id)s AND (step.started_at >= first.started_at OR step.name = %(name)s)
    RETURNING step.name
), signals AS (
    DELETE FROM horsies_signals AS signal USING gone WHERE signal.task_id = %(id)s AND signal.name = gone.name
)
SELECT name FROM gone;

-- name: fence
-- Check within the caller's transaction that a task is still this worker's; the lock holds until that transaction ends. The
-- server ends the session of a process that was frozen in between, so that another worker can take the task over. All
-- parameters are texts, so that every driver can run the statement.
SELECT set_config('idle_in_transaction_session_timeout', '2min', true)
  FROM horsies_tasks_live
 WHERE id = CAST(CAST(%(task_id)s AS text) AS uuid) AND claim_seq = CAST(CAST(%(claim_seq)s AS text) AS integer)
   AND claimed_by_worker_id = CAST(CAST(%(worker_id)s AS text) AS uuid) AND status = 'RUNNING' FOR SHARE;

-- name: store_in_transaction
-- Store a step in the caller's transaction, whose effects commit with it.
INSERT INTO horsies_steps (task_id, name, kind, claim_seq, attempt, started_at, ended_at, result)
VALUES (CAST(CAST(%(task_id)s AS text) AS uuid), %(name)s, 'transact', CAST(CAST(%(claim_seq)s AS text) AS integer),
        CAST(CAST(%(attempt)s AS text) AS integer), now(), clock_timestamp(), %(result)s)
RETURNING name;

-- name: wait_for_transaction
-- Wait until no other session holds the task in a transaction. What that one has committed can be seen after this.
SELECT id FROM horsies_tasks_live WHERE id = CAST(CAST(%(task_id)s AS text) AS uuid) FOR NO KEY UPDATE;

-- name: stored
SELECT result FROM horsies_steps
 WHERE task_id = CAST(CAST(%(task_id)s AS text) AS uuid) AND name = %(name)s AND ended_at IS NOT NULL;
