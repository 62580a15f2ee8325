-- name: why
-- Everything that may keep a task from running.
WITH task AS (
    SELECT * FROM horsies_tasks WHERE id = %(id)s
), alive AS (
    SELECT worker.*, latest.queue_max_concurrency, latest.cluster_wide_cap
      FROM horsies_workers AS worker
      LEFT JOIN LATERAL (SELECT queue_max_concurrency, cluster_wide_cap FROM horsies_worker_states AS state
                          WHERE state.worker_id = worker.worker_id ORDER BY snapshot_at DESC LIMIT 1) AS latest ON true
     WHERE worker.dead_at IS NULL AND worker.lease_expires_at > now() AND worker.state <> 'draining'
), serving AS (
    SELECT alive.* FROM alive, task WHERE task.queue_name = ANY (alive.queues)
)
SELECT task.id::text, task.task_name, task.status, task.queue_name, task.is_async, task.priority,
       extract(epoch FROM task.enqueued_at - now())::double precision AS due_in,
       extract(epoch FROM task.good_until - now())::double precision AS expires_in,
       task.retry_count > 0 OR task.earlier_attempts > 0 AS was_tried,
       task.error_code, task.worker_hostname, task.worker_pid,
       extract(epoch FROM now() - coalesce(task.terminal_at, task.started_at, task.claimed_at))::double precision AS since,
       EXISTS (SELECT FROM horsies_suspensions WHERE queue_name = '') AS all_suspended,
       EXISTS (SELECT FROM horsies_suspensions AS held WHERE held.queue_name = task.queue_name) AS queue_suspended,
       (SELECT count(*) FROM alive)::integer AS workers,
       (SELECT count(*) FROM serving)::integer AS serving,
       EXISTS (SELECT FROM horsies_task_definitions AS known WHERE known.task_name = task.task_name) AS is_known,
       (SELECT min((queue_max_concurrency ->> task.queue_name)::integer) FROM serving) AS queue_limit,
       (SELECT coalesce(sum(tasks), 0) FROM horsies_in_flight AS held WHERE held.queue_name = task.queue_name)::integer
           AS queue_in_flight,
       (SELECT min(cluster_wide_cap) FROM serving)::integer AS cluster_limit,
       (SELECT coalesce(sum(tasks), 0) FROM horsies_in_flight WHERE queue_name = '')::integer AS cluster_in_flight,
       (SELECT extract(epoch FROM rate.spent_until + make_interval(secs => rate.seconds) - now())::double precision
          FROM horsies_rates AS rate WHERE rate.rate_key = task.rate_key AND rate.seconds > 0) AS rate_allows_in,
       (SELECT count(*) FROM (
            SELECT FROM horsies_tasks_live AS ahead
             WHERE ahead.queue_name = task.queue_name AND ahead.is_async = task.is_async AND ahead.status = 'PENDING'
               AND ahead.enqueued_at <= now() AND ahead.priority <> 0
               AND (ahead.priority, ahead.enqueued_at, ahead.id) < (task.priority, task.enqueued_at, task.id)
             LIMIT %(most)s) AS ahead)::integer AS ahead,
       (SELECT coalesce(sum(processes), 0) FROM serving)::integer AS slots,
       (SELECT count(*) FROM horsies_tasks_live AS busy
         WHERE busy.status = 'RUNNING' AND busy.claimed_by_worker_id IN (SELECT worker_id FROM serving))::integer AS running,
       (SELECT flow.id::text FROM horsies_workflows AS flow
         WHERE flow.id = task.workflow_id AND flow.status = 'PAUSED') AS paused_workflow,
       extract(epoch FROM now() - task.unknown_since)::double precision AS unknown_for,
       extract(epoch FROM now() - task.cancel_asked_at)::double precision AS asked_to_stop
  FROM task;
