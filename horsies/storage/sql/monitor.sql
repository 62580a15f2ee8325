-- name: queues
-- How each queue stands: those that have tasks, those that workers serve, and those that are suspended.
WITH live AS (
    SELECT queue_name,
           count(*) FILTER (WHERE status = 'PENDING' AND enqueued_at <= now()) AS pending,
           count(*) FILTER (WHERE status = 'PENDING' AND enqueued_at > now()) AS scheduled,
           count(*) FILTER (WHERE status = 'CLAIMED') AS claimed,
           count(*) FILTER (WHERE status = 'RUNNING') AS running,
           extract(epoch FROM now() - min(enqueued_at) FILTER (WHERE status = 'PENDING' AND enqueued_at <= now()))
               ::double precision AS oldest_pending_seconds
      FROM horsies_tasks_live GROUP BY queue_name
), failed AS (
    SELECT queue_name, count(*) AS failed FROM horsies_tasks_history WHERE status = 'FAILED' GROUP BY queue_name
), served AS (
    SELECT DISTINCT unnest(queues) AS queue_name FROM horsies_workers
     WHERE dead_at IS NULL AND lease_expires_at > now()
), limited AS (
    SELECT key AS queue_name, min(value::integer) AS max_concurrency
      FROM horsies_workers AS worker
     CROSS JOIN LATERAL (SELECT queue_max_concurrency FROM horsies_worker_states AS state
                          WHERE state.worker_id = worker.worker_id ORDER BY snapshot_at DESC LIMIT 1) AS latest
     CROSS JOIN LATERAL jsonb_each_text(latest.queue_max_concurrency)
     WHERE worker.dead_at IS NULL AND worker.lease_expires_at > now() AND value IS NOT NULL
     GROUP BY key
)
SELECT queue_name, coalesce(pending, 0), coalesce(scheduled, 0), coalesce(claimed, 0), coalesce(running, 0),
       coalesce(failed, 0), oldest_pending_seconds, max_concurrency, suspension.queue_name IS NOT NULL
  FROM live
  FULL JOIN failed USING (queue_name)
  FULL JOIN served USING (queue_name)
  LEFT JOIN limited USING (queue_name)
  FULL JOIN (SELECT queue_name FROM horsies_suspensions WHERE queue_name <> '') AS suspension USING (queue_name)
 ORDER BY queue_name;

-- name: workers
-- Every worker that is alive or died within the last day, and what it was like when it last said so.
SELECT worker.worker_id::text, worker.hostname, worker.pid,
       CASE WHEN worker.dead_at IS NOT NULL OR worker.lease_expires_at < now() THEN 'dead' ELSE worker.state END,
       worker.queues, worker.processes, coalesce(held.running, 0), coalesce(held.ids, '{}'), worker.started_at,
       worker.last_beat_at, latest.memory_usage_mb, latest.children_memory_mb
  FROM horsies_workers AS worker
  LEFT JOIN (SELECT claimed_by_worker_id, count(*) AS running, (array_agg(id::text ORDER BY id))[:100] AS ids
               FROM horsies_tasks_live WHERE status = 'RUNNING' GROUP BY claimed_by_worker_id) AS held
    ON held.claimed_by_worker_id = worker.worker_id
  LEFT JOIN LATERAL (SELECT memory_usage_mb, children_memory_mb FROM horsies_worker_states AS state
                      WHERE state.worker_id = worker.worker_id ORDER BY snapshot_at DESC LIMIT 1) AS latest ON true
 ORDER BY worker.started_at, worker.worker_id;

-- name: tasks
-- The tasks sent last, as far as they fit what is asked for; after `before`, older ones.
SELECT id::text, task_name, status, queue_name, priority, retry_count, max_retries, next_retry_at, sent_at, enqueued_at,
       claimed_at, started_at, completed_at, failed_at, worker_hostname, worker_pid, worker_process_name, error_code,
       failed_reason, earlier_attempts + retry_count + (started_at IS NOT NULL)::int,
       CASE WHEN error_code IS NOT NULL THEN result::json -> 'err' ->> 'message' END
  FROM horsies_tasks
 WHERE (%(status)s::text IS NULL OR status = %(status)s)
   AND (%(name)s::text IS NULL OR task_name = %(name)s)
   AND (%(queue)s::text IS NULL OR queue_name = %(queue)s)
   AND (%(code)s::text IS NULL OR error_code = %(code)s)
   AND (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
 ORDER BY id DESC
 LIMIT %(limit)s;

-- name: failures
-- The tasks that failed last.
SELECT id::text, task_name, status, queue_name, priority, retry_count, max_retries, next_retry_at, sent_at, enqueued_at,
       claimed_at, started_at, completed_at, failed_at, worker_hostname, worker_pid, worker_process_name, error_code,
       failed_reason, earlier_attempts + retry_count + (started_at IS NOT NULL)::int,
       CASE WHEN error_code IS NOT NULL THEN result::json -> 'err' ->> 'message' END
  FROM horsies_tasks_history
 WHERE status = 'FAILED'
   AND (%(name)s::text IS NULL OR task_name = %(name)s)
   AND (%(queue)s::text IS NULL OR queue_name = %(queue)s)
   AND (%(code)s::text IS NULL OR error_code = %(code)s)
 ORDER BY terminal_at DESC, id DESC
 LIMIT %(limit)s;

-- name: task
-- One task in full.
SELECT id::text, task_name, status, queue_name, priority, retry_count, max_retries, next_retry_at, sent_at, enqueued_at,
       claimed_at, started_at, completed_at, failed_at, worker_hostname, worker_pid, worker_process_name, error_code,
       failed_reason, earlier_attempts + retry_count + (started_at IS NOT NULL)::int,
       CASE WHEN error_code IS NOT NULL THEN result::json -> 'err' ->> 'message' END,
       args, kwargs, result, good_until, timeout_ms, tags, crash_count, claimed_by_worker_id::text
  FROM horsies_tasks
 WHERE id = %(id)s;
