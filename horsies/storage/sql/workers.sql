-- name: register
INSERT INTO horsies_workers (worker_id, hostname, pid, processes, queues, lease_expires_at)
VALUES (%(worker_id)s, %(hostname)s, %(pid)s, %(processes)s, %(queues)s,
        now() + make_interval(secs => %(lease_seconds)s));

-- name: define
-- Say what the tasks are like that this worker knows; an unchanged definition is not written again.
INSERT INTO horsies_task_definitions AS known
       (task_name, queue_name, priority, is_async, max_retries, timeout_ms, task_options, rate_key)
SELECT task_name, queue_name, priority, is_async, max_retries, timeout_ms, task_options, rate_key
  FROM json_to_recordset(%(rows)s::json) AS said (
       task_name text, queue_name text, priority smallint, is_async boolean, max_retries smallint,
       timeout_ms integer, task_options text, rate_key text)
 ORDER BY task_name
ON CONFLICT (task_name) DO UPDATE
   SET queue_name = excluded.queue_name, priority = excluded.priority, is_async = excluded.is_async,
       max_retries = excluded.max_retries, timeout_ms = excluded.timeout_ms, task_options = excluded.task_options,
       rate_key = excluded.rate_key, updated_at = now()
 WHERE (known.queue_name, known.priority, known.is_async, known.max_retries, known.timeout_ms, known.task_options,
        known.rate_key)
       IS DISTINCT FROM (excluded.queue_name, excluded.priority, excluded.is_async, excluded.max_retries,
                         excluded.timeout_ms, excluded.task_options, excluded.rate_key);

-- name: limit_rates
-- Say how often these tasks may start. A limit that a task has no more is lifted, not removed: tasks that were sent
-- under it still stand in its line.
WITH said AS (
    SELECT * FROM json_to_recordset(%(rows)s::json)
        AS said (task_name text, rate_seconds double precision, rate_burst integer)
), lifted AS (
    UPDATE horsies_rates SET seconds = 0 FROM said
     WHERE rate_key = said.task_name AND said.rate_seconds IS NULL AND seconds > 0
)
INSERT INTO horsies_rates AS known (rate_key, seconds, burst)
SELECT task_name, rate_seconds, rate_burst FROM said WHERE rate_seconds IS NOT NULL ORDER BY task_name
ON CONFLICT (rate_key) DO UPDATE SET seconds = excluded.seconds, burst = excluded.burst
 WHERE (known.seconds, known.burst) <> (excluded.seconds, excluded.burst);

-- name: welcome
-- What was put off because nobody knew it, and this worker does, is due again as it was.
UPDATE horsies_tasks_live AS task
   SET enqueued_at = task.unknown_since, unknown_since = NULL
  FROM (SELECT id FROM horsies_tasks_live
         WHERE unknown_since IS NOT NULL AND status = 'PENDING'
           AND task_name IN (SELECT task_name FROM json_to_recordset(%(rows)s::json) AS said (task_name text))
           FOR UPDATE SKIP LOCKED) AS known
 WHERE task.id = known.id;

-- name: rates
SELECT rate_key FROM horsies_rates ORDER BY rate_key;

-- name: prepare_history
-- Whoever keeps a lease over this connection cannot wait for a lock on the tasks.
SELECT set_config('lock_timeout', '500ms', true), horsies_prepare_history(7);

-- name: beat
-- Renew the lease. A late renewal revives it; no row in the answer means that the worker was declared dead. Tells
-- whether another worker's lease has run out, whether this one leads (the oldest whose lease holds cleans up for all),
-- which queues are suspended, and which of the tasks that it runs are asked to stop.
UPDATE horsies_workers
   SET lease_expires_at = greatest(lease_expires_at, now() + make_interval(secs => %(lease_seconds)s)),
       last_beat_at = now(), state = %(state)s
 WHERE worker_id = %(worker_id)s AND dead_at IS NULL
RETURNING EXISTS (SELECT FROM horsies_workers AS other WHERE other.dead_at IS NULL AND other.lease_expires_at < now()),
          NOT EXISTS (SELECT FROM horsies_workers AS other
                       WHERE other.dead_at IS NULL AND other.lease_expires_at >= now()
                         AND (other.started_at, other.worker_id) < (horsies_workers.started_at, horsies_workers.worker_id)),
          ARRAY (SELECT queue_name FROM horsies_suspensions),
          ARRAY (SELECT id::text FROM horsies_tasks_live
                  WHERE id = ANY (%(running)s::uuid[]) AND cancel_asked_at IS NOT NULL);

-- name: wait
-- Say whether this worker sleeps until it is notified of a plain or an async task, and how it is. Losing this in a crash
-- costs one poll, so nobody waits for the disk.
UPDATE horsies_workers SET waiting = %(waiting)s, waiting_async = %(waiting_async)s, state = %(state)s
 WHERE worker_id = %(worker_id)s AND dead_at IS NULL
   AND (waiting, waiting_async, state) <> (%(waiting)s, %(waiting_async)s, %(state)s)
   AND set_config('synchronous_commit', 'off', true) IS NOT NULL;

-- name: living
-- Which of these sessions have not ended: what they were asked for last may still be carried out.
SELECT pid FROM pg_stat_activity WHERE pid = ANY (%(sessions)s::int[]);

-- name: resign
DELETE FROM horsies_workers WHERE worker_id = %(worker_id)s;

-- name: lead
-- Nor here, to the end of the transaction: what cannot be rescued now is rescued later.
SELECT pg_try_advisory_xact_lock(7240118054), set_config('lock_timeout', '500ms', true);

-- name: bury
-- Declare workers dead whose lease ran out and who were silent for long enough, and forget those that died long ago. Not
-- while the server itself has only just come back: then nobody could renew.
WITH forgotten AS (
    DELETE FROM horsies_workers WHERE dead_at < now() - interval '1 day'
)
UPDATE horsies_workers SET dead_at = now(), state = 'dead', waiting = false, waiting_async = false
 WHERE dead_at IS NULL AND lease_expires_at < now()
   AND last_beat_at < now() - make_interval(secs => %(running_seconds)s)
   AND pg_postmaster_start_time() < now() - make_interval(secs => %(quarantine_seconds)s)
RETURNING worker_id, hostname, pid;

-- name: orphans
-- Tasks held by a worker that is dead or unknown; those that it has not started, as soon as it was silent for so long.
SELECT task.status, 0 AS turn, task.id, task.claim_seq, task.task_name, task.args, task.kwargs, task.queue_name,
       task.is_async, task.priority, task.enqueued_at, task.worker_pid, task.timeout_ms, task.retry_count, task.max_retries,
       task.crash_count, task.good_until IS NOT NULL, task.task_options, task.workflow_id, task.workflow_index,
       task.earlier_attempts
  FROM horsies_tasks_live AS task LEFT JOIN horsies_workers AS worker ON worker.worker_id = task.claimed_by_worker_id
 WHERE CASE task.status
       WHEN 'CLAIMED' THEN %(requeue)s
            AND (worker.worker_id IS NULL OR worker.dead_at IS NOT NULL
                 OR worker.lease_expires_at < now()
                    AND worker.last_beat_at < now() - make_interval(secs => %(claimed_seconds)s)
                    AND pg_postmaster_start_time() < now() - make_interval(secs => %(quarantine_seconds)s))
       WHEN 'RUNNING' THEN %(fail)s AND (worker.worker_id IS NULL OR worker.dead_at IS NOT NULL)
       ELSE false END
 ORDER BY task.id
 LIMIT 500
   FOR UPDATE OF task SKIP LOCKED;

-- name: unclaim
-- Give back claims that were never started.
WITH lost AS MATERIALIZED (
    SELECT CAST(%(lost)s AS jsonb) AS of
), freed AS (
    UPDATE horsies_tasks_live AS task
       SET status = 'PENDING', claim_seq = task.claim_seq + 1, claimed_by_worker_id = NULL, claimed_at = NULL,
           claim_expires_at = NULL, worker_pid = NULL
     WHERE task.id = ANY (ARRAY (SELECT CAST(left(call, 36) AS uuid) FROM lost, jsonb_object_keys(of) AS call))
       AND (SELECT of FROM lost) ? (task.id || '/' || task.claim_seq) AND task.status = 'CLAIMED'
    RETURNING task.queue_name
)
SELECT pg_notify(horsies_queue_channel(queue_name), '')
  FROM (SELECT DISTINCT queue_name FROM freed) AS touched;

-- name: forget
-- What dead workers held has been rescued and counts against no limit any more. Those who wait for it are woken.
WITH gone AS (
    DELETE FROM horsies_in_flight AS held USING horsies_workers AS worker
     WHERE worker.worker_id = held.worker_id AND worker.dead_at IS NOT NULL
    RETURNING held.queue_name
)
SELECT pg_notify(horsies_queue_channel(queue_name), '')
  FROM (SELECT DISTINCT unnest(queues) AS queue_name FROM horsies_workers
         WHERE (waiting OR waiting_async) AND lease_expires_at > now() AND EXISTS (SELECT FROM gone)) AS waited_for;
