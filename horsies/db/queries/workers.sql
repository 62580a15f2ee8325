-- name: register
INSERT INTO horsies_workers (worker_id, hostname, pid, processes, queues, task_names, lease_expires_at)
VALUES (%(worker_id)s, %(hostname)s, %(pid)s, %(processes)s, %(queues)s, %(task_names)s,
        now() + make_interval(secs => %(lease_seconds)s));

-- fragment: definition_columns
queue_name, priority, is_async, max_retries, timeout_ms, task_options, rate_key, key_source, key_concurrency,
key_seconds, key_burst, on_conflict

-- name: upsert_definitions
-- Insert or update the definitions of this worker's tasks. A definition that has not changed is not written.
INSERT INTO horsies_task_definitions AS known (task_name, {definition_columns})
SELECT task_name, {definition_columns}
  FROM json_to_recordset(%(rows)s::json) AS given (
       task_name text, queue_name text, priority smallint, is_async boolean, max_retries smallint,
       timeout_ms integer, task_options text, rate_key text, key_source text, key_concurrency integer,
       key_seconds double precision, key_burst integer, on_conflict text)
 ORDER BY task_name
ON CONFLICT (task_name) DO UPDATE
   SET queue_name = excluded.queue_name, priority = excluded.priority, is_async = excluded.is_async,
       max_retries = excluded.max_retries, timeout_ms = excluded.timeout_ms, task_options = excluded.task_options,
       rate_key = excluded.rate_key, key_source = excluded.key_source, key_concurrency = excluded.key_concurrency,
       key_seconds = excluded.key_seconds, key_burst = excluded.key_burst,
       on_conflict = excluded.on_conflict, updated_at = now()
 WHERE (known.queue_name, known.priority, known.is_async, known.max_retries, known.timeout_ms, known.task_options,
        known.rate_key, known.key_source, known.key_concurrency, known.key_seconds, known.key_burst,
        known.on_conflict)
       IS DISTINCT FROM (excluded.queue_name, excluded.priority, excluded.is_async, excluded.max_retries,
                         excluded.timeout_ms, excluded.task_options, excluded.rate_key, excluded.key_source,
                         excluded.key_concurrency, excluded.key_seconds, excluded.key_burst,
                         excluded.on_conflict);

-- name: upsert_rates
-- Insert or update the rate limits of these tasks. A limit that a task no longer has is set to 0 and not deleted, because
-- tasks that were sent with it still have its rate_key. A task that runs in batches has a limit of 0 for the same reason: once
-- it does not, workers claim from its lane as from that of a removed limit.
WITH given AS (
    SELECT * FROM json_to_recordset(%(rows)s::json)
        AS given (task_name text, rate_key text, rate_seconds double precision, rate_burst integer)
), lifted AS (
    UPDATE horsies_rates SET seconds = 0 FROM given
     WHERE horsies_rates.rate_key = given.task_name AND given.rate_seconds IS NULL AND seconds > 0
)
INSERT INTO horsies_rates AS known (rate_key, seconds, burst)
SELECT rate_key, coalesce(rate_seconds, 0), coalesce(rate_burst, 1) FROM given
 WHERE rate_seconds IS NOT NULL OR rate_key >= 'batch=' AND rate_key < 'batch>' ORDER BY rate_key
ON CONFLICT (rate_key) DO UPDATE SET seconds = excluded.seconds, burst = excluded.burst
 WHERE (known.seconds, known.burst) <> (excluded.seconds, excluded.burst);

-- name: resume_deferred
-- Tasks that were deferred because no worker knew their name, and that this worker knows, get their due time back.
UPDATE horsies_tasks_live AS task
   SET enqueued_at = task.unknown_since, unknown_since = NULL, unknown_until = NULL
  FROM (SELECT id FROM horsies_tasks_live
         WHERE unknown_since IS NOT NULL AND status = 'PENDING'
           AND task_name IN (SELECT task_name FROM json_to_recordset(%(rows)s::json) AS given (task_name text))
           FOR UPDATE SKIP LOCKED) AS known
 WHERE task.id = known.id;

-- name: known_elsewhere
-- Return the names and queues, of those given, for which a live worker serves the queue and knows the task.
SELECT DISTINCT queue_name, task_name
  FROM horsies_workers AS worker
 CROSS JOIN LATERAL unnest(worker.queues) AS queue_name CROSS JOIN LATERAL unnest(worker.task_names) AS task_name
  JOIN json_to_recordset(%(rows)s::json) AS given (queue_name text, task_name text) USING (queue_name, task_name)
 WHERE worker.dead_at IS NULL AND worker.lease_expires_at > now() AND worker.state <> 'draining';

-- name: rates
SELECT rate_key FROM horsies_rates ORDER BY rate_key;

-- name: prepare_history
-- The lock timeout keeps the wait for a lock on the tasks short: the lease is renewed over the same connection.
SELECT set_config('lock_timeout', '500ms', true), horsies_prepare_history(7);

-- name: renew_lease
-- Extend the lease of a worker. A late renewal is accepted as long as the worker was not declared dead; no row means that it
-- was. The leader is the oldest worker with a valid lease: it does the maintenance of the cluster.
UPDATE horsies_workers
   SET lease_expires_at = greatest(lease_expires_at, now() + make_interval(secs => %(lease_seconds)s)),
       last_beat_at = now(), state = %(state)s
 WHERE worker_id = %(worker_id)s AND dead_at IS NULL
RETURNING true AS is_alive,
          EXISTS (SELECT FROM horsies_workers AS other WHERE other.dead_at IS NULL AND other.lease_expires_at < now())
              AS others_are_late,
          NOT EXISTS (SELECT FROM horsies_workers AS other
                       WHERE other.dead_at IS NULL AND other.lease_expires_at >= now()
                         AND (other.started_at, other.worker_id) < (horsies_workers.started_at, horsies_workers.worker_id))
              AS leads,
          ARRAY (SELECT queue_name FROM horsies_suspensions) AS suspended,
          ARRAY (SELECT id::text FROM horsies_tasks_live
                  WHERE id = ANY (%(running)s::uuid[]) AND cancel_asked_at IS NOT NULL) AS cancelled;

-- name: set_waiting
-- Store whether this worker sleeps until it is notified of a plain or an async task, and its state. The commit does not wait
-- for the disk: if a crash of the server loses it, the next poll finds the task.
UPDATE horsies_workers SET waiting = %(waiting)s, waiting_async = %(waiting_async)s, state = %(state)s
 WHERE worker_id = %(worker_id)s AND dead_at IS NULL
   AND (waiting, waiting_async, state) <> (%(waiting)s, %(waiting_async)s, %(state)s)
   AND set_config('synchronous_commit', 'off', true) IS NOT NULL;

-- name: open_sends
-- The open transactions that have written to the live table: they may have sent a task before they could see that this worker
-- waits. They hold a lock on the table until their commit is visible. With `named`, only those of an earlier answer.
SELECT DISTINCT virtualtransaction
  FROM pg_locks
 WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND pid IS DISTINCT FROM pg_backend_pid()
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND relation = 'horsies_tasks_live'::regclass
   AND (%(named)s::text[] IS NULL OR virtualtransaction = ANY (%(named)s::text[]));

-- name: open_sessions
-- The given sessions that have not ended: the server may still execute their last statement.
SELECT pid FROM pg_stat_activity WHERE pid = ANY (%(sessions)s::int[]);

-- name: server_identity
-- A text that is another one after a restart and on another server.
SELECT pg_postmaster_start_time()::text;

-- name: deregister
DELETE FROM horsies_workers WHERE worker_id = %(worker_id)s;

-- name: try_reaper_lock
-- The lock timeout holds until the end of the transaction: a task whose row is locked now is rescued later.
SELECT pg_try_advisory_xact_lock(7240118054), set_config('lock_timeout', '500ms', true);

-- name: mark_dead
-- Declare workers dead whose lease has expired and that were silent for long enough, and delete those that died over a day
-- ago. Not shortly after the start of the server: until then no worker could renew its lease.
WITH deleted AS (
    DELETE FROM horsies_workers WHERE dead_at < now() - interval '1 day'
)
UPDATE horsies_workers SET dead_at = now(), state = 'dead', waiting = false, waiting_async = false
 WHERE dead_at IS NULL AND lease_expires_at < now()
   AND last_beat_at < now() - make_interval(secs => %(running_seconds)s)
   AND pg_postmaster_start_time() < now() - make_interval(secs => %(quarantine_seconds)s)
RETURNING worker_id, hostname, pid;

-- name: orphans
-- Tasks of a worker that is dead or unknown. Tasks that it has claimed and not started also count when its lease has expired
-- and it was silent for `claimed_seconds`.
SELECT task.status = 'RUNNING' AS was_started, 0 AS turn, task.id, task.claim_seq, task.task_name, task.args, task.kwargs, task.queue_name,
       task.is_async, task.priority, task.enqueued_at, task.worker_pid AS pid, task.timeout_ms, task.retry_count, task.max_retries,
       task.crash_count, task.good_until IS NOT NULL AS has_expiry, task.task_options, task.workflow_id, task.workflow_index,
       task.earlier_attempts, task.rate_key
  FROM horsies_tasks_live AS task LEFT JOIN horsies_workers AS worker ON worker.worker_id = task.claimed_by_worker_id
 WHERE CASE task.status
       WHEN 'CLAIMED' THEN %(requeue)s
            AND (worker.worker_id IS NULL OR worker.dead_at IS NOT NULL
                 OR worker.lease_expires_at < now()
                    AND worker.last_beat_at < now() - make_interval(secs => %(claimed_seconds)s)
                    AND pg_postmaster_start_time() < now() - make_interval(secs => %(quarantine_seconds)s))
       WHEN 'RUNNING' THEN %(fail)s AND (worker.worker_id IS NULL OR worker.dead_at IS NOT NULL)
       ELSE false END
 ORDER BY task.id LIMIT 500 FOR UPDATE OF task SKIP LOCKED;

-- name: delete_usage_of_dead
-- The tasks of dead workers have been rescued and no longer count against concurrency limits. Workers that wait for a free
-- place are woken.
WITH gone AS (
    DELETE FROM horsies_in_flight AS held USING horsies_workers AS worker
     WHERE worker.worker_id = held.worker_id AND worker.dead_at IS NOT NULL
    RETURNING held.queue_name
)
SELECT pg_notify(horsies_queue_channel(queue_name), '')
  FROM (SELECT DISTINCT unnest(queues) AS queue_name FROM horsies_workers
         WHERE (waiting OR waiting_async) AND lease_expires_at > now() AND EXISTS (SELECT FROM gone)) AS waited_for;

-- name: sweep_keys
-- Delete the slots of tasks that have ended or were released, and the states of keys that say nothing any more. Workers that wait are
-- woken if a slot was left behind: whoever ended its task did not look for the next one of the key.
WITH gone AS (
    DELETE FROM horsies_key_slots AS left_behind
     WHERE (left_behind.rate_key, left_behind.task_id, left_behind.claim_seq) IN (
               SELECT slot.rate_key, slot.task_id, slot.claim_seq FROM horsies_key_slots AS slot
                WHERE NOT {is_slot_taken} LIMIT 5000 FOR UPDATE SKIP LOCKED)
    RETURNING left_behind.rate_key
), forgotten AS (
    DELETE FROM horsies_keys
     WHERE rate_key = ANY (ARRAY (SELECT rate_key FROM horsies_keys
                                   WHERE paused_at IS NULL AND next_at < now() - interval '10 minutes'
                                   ORDER BY next_at LIMIT 5000 FOR UPDATE SKIP LOCKED))
)
SELECT pg_notify(horsies_queue_channel(queue_name), '')
  FROM (SELECT DISTINCT unnest(queues) AS queue_name FROM horsies_workers
         WHERE (waiting OR waiting_async) AND lease_expires_at > now() AND EXISTS (SELECT FROM gone)) AS waited_for;

-- name: insert_snapshot
-- Insert a snapshot of a worker, with the columns of its registration. A worker that was declared dead gets none.
INSERT INTO horsies_worker_states
       (worker_id, hostname, pid, state, processes, max_claim_batch, max_claim_per_worker, cluster_wide_cap, queues,
        queue_priorities, queue_max_concurrency, recovery_config, tasks_running, tasks_claimed, memory_usage_mb,
        memory_percent, cpu_percent, children_memory_mb, worker_started_at, current_task_ids,
        children)
SELECT worker_id, hostname, pid, %(state)s, processes, %(max_claim_batch)s, %(max_claim_per_worker)s,
       %(cluster_wide_cap)s, queues, %(queue_priorities)s::jsonb, %(queue_max_concurrency)s::jsonb,
       %(recovery_config)s::jsonb, %(tasks_running)s, %(tasks_claimed)s, %(memory_usage_mb)s, %(memory_percent)s,
       %(cpu_percent)s, %(children_memory_mb)s, started_at, %(current_task_ids)s::uuid[],
       %(children)s::jsonb
  FROM horsies_workers
 WHERE worker_id = %(worker_id)s AND dead_at IS NULL;

-- name: insert_task_heartbeats
-- Insert a heartbeat for each task that still runs here. Tasks that have ended or belong to another worker are skipped. (The
-- LIMIT makes the planner look up each task by its id, whatever the statistics of the table.)
INSERT INTO horsies_heartbeats (task_id, sender_id, role, hostname, pid, memory_mb)
SELECT sent.task_id, %(worker_id)s::uuid, 'runner', task.worker_hostname, sent.pid, sent.memory_mb
  FROM json_to_recordset(%(rows)s::json) AS sent (
       task_id uuid, claim_seq integer, pid integer, memory_mb double precision)
 CROSS JOIN LATERAL (
       SELECT worker_hostname FROM horsies_tasks_live
        WHERE id = sent.task_id AND claim_seq = sent.claim_seq AND status = 'RUNNING'
          AND claimed_by_worker_id = %(worker_id)s
        LIMIT 1) AS task;

-- name: on_host
SELECT worker_id::text AS worker_id, pid,
       CASE WHEN dead_at IS NOT NULL OR lease_expires_at < now() THEN 'dead' ELSE state END AS state,
       extract(epoch FROM now())::double precision - extract(epoch FROM last_beat_at)::double precision
           AS silent_seconds
  FROM horsies_workers
 WHERE hostname = %(hostname)s
 ORDER BY last_beat_at DESC;
