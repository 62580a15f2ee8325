-- name: pulse
-- How far the server has written. While that stays the same, nothing has changed.
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END)::text;

-- name: recent
-- What ended since a moment, five seconds at a time.
SELECT to_timestamp(floor(extract(epoch FROM terminal_at) / 5) * 5) AS slot,
       count(*) FILTER (WHERE status = 'COMPLETED'), count(*) FILTER (WHERE status = 'FAILED'),
       count(*) FILTER (WHERE status NOT IN ('COMPLETED', 'FAILED')),
       horsies_histogram(array_agg(width_bucket(
           extract(epoch FROM started_at - enqueued_at)::double precision, horsies_time_bounds()))
           FILTER (WHERE started_at IS NOT NULL)),
       horsies_histogram(array_agg(width_bucket(
           extract(epoch FROM terminal_at - started_at)::double precision, horsies_time_bounds()))
           FILTER (WHERE started_at IS NOT NULL))
  FROM horsies_tasks_history
 WHERE terminal_at >= %(since)s AND terminal_at < %(until)s
 GROUP BY slot
 ORDER BY slot;

-- name: minutes
-- What ended in each minute since a moment, as it was counted.
SELECT minute, completed, failed, cancelled + expired, waits, runs
  FROM horsies_rollups
 WHERE queue_name = '' AND minute >= %(since)s
 ORDER BY minute;

-- name: depths
-- How much waited and ran in each minute, as it was sounded.
SELECT minute, sum(pending)::bigint, sum(running)::bigint
  FROM horsies_depths WHERE minute >= %(since)s GROUP BY minute ORDER BY minute;

-- name: busiest
-- What ended since a moment, by queue and task.
SELECT queue_name, task_name, sum(completed)::bigint, sum(failed)::bigint, (sum(cancelled) + sum(expired))::bigint,
       sum(run_ms)::bigint
  FROM horsies_rollups
 WHERE minute >= %(since)s AND queue_name <> ''
 GROUP BY queue_name, task_name
 ORDER BY sum(completed) + sum(failed) DESC, queue_name, task_name
 LIMIT %(limit)s;

-- name: queues
-- How each queue stands: those that have tasks, that workers serve, or that are suspended. Up to `most` tasks of each are
-- looked at; of more, the last sounding tells.
WITH RECURSIVE live (queue_name) AS (
    (SELECT queue_name FROM horsies_tasks_live WHERE priority <> 0 ORDER BY queue_name LIMIT 1)
    UNION ALL
    SELECT (SELECT task.queue_name FROM horsies_tasks_live AS task
             WHERE task.queue_name > live.queue_name AND task.priority <> 0 ORDER BY task.queue_name LIMIT 1)
      FROM live WHERE live.queue_name IS NOT NULL
), alive AS (
    SELECT worker_id, queues FROM horsies_workers WHERE dead_at IS NULL AND lease_expires_at > now()
), names AS (
    SELECT queue_name FROM live WHERE queue_name IS NOT NULL
    UNION SELECT unnest(queues) FROM alive
    UNION SELECT queue_name FROM horsies_suspensions WHERE queue_name <> ''
), limits AS (
    SELECT key AS queue_name, min(value::integer) AS max_concurrency
      FROM alive
     CROSS JOIN LATERAL (SELECT queue_max_concurrency FROM horsies_worker_states AS state
                          WHERE state.worker_id = alive.worker_id ORDER BY snapshot_at DESC LIMIT 1) AS latest
     CROSS JOIN LATERAL jsonb_each_text(latest.queue_max_concurrency)
     WHERE value IS NOT NULL
     GROUP BY key
)
SELECT queue_name, counted.pending, counted.scheduled, counted.claimed, counted.running, counted.oldest,
       counted.looked_at >= %(most)s, sounding.pending, sounding.oldest_pending_seconds, limits.max_concurrency,
       suspension.suspended_by,
       (SELECT count(*) FROM alive WHERE names.queue_name = ANY (alive.queues))
  FROM names
 CROSS JOIN LATERAL (
       SELECT count(*) AS looked_at,
              count(*) FILTER (WHERE status = 'PENDING' AND enqueued_at <= now()) AS pending,
              count(*) FILTER (WHERE status = 'PENDING' AND enqueued_at > now()) AS scheduled,
              count(*) FILTER (WHERE status = 'CLAIMED') AS claimed,
              count(*) FILTER (WHERE status = 'RUNNING') AS running,
              extract(epoch FROM now() - min(enqueued_at) FILTER (WHERE status = 'PENDING' AND enqueued_at <= now()))
                  ::double precision AS oldest
         FROM (SELECT status, enqueued_at FROM horsies_tasks_live AS task
                WHERE task.queue_name = names.queue_name AND task.priority <> 0
                ORDER BY task.queue_name, is_async, rate_key, priority, enqueued_at, id
                LIMIT %(most)s) AS first) AS counted
  LEFT JOIN LATERAL (
       SELECT pending, oldest_pending_seconds FROM horsies_depths AS depth
        WHERE depth.queue_name = names.queue_name AND minute > now() - interval '5 minutes'
        ORDER BY minute DESC LIMIT 1) AS sounding ON counted.looked_at >= %(most)s
  LEFT JOIN limits USING (queue_name)
  LEFT JOIN horsies_suspensions AS suspension USING (queue_name)
 ORDER BY queue_name;

-- name: workers
-- Every worker that is alive or died within the last day, and what it was like when it last said so.
SELECT worker.worker_id::text, worker.hostname, worker.pid,
       CASE WHEN worker.dead_at IS NOT NULL OR worker.lease_expires_at < now() THEN 'dead' ELSE worker.state END,
       worker.queues, worker.processes, worker.started_at, worker.last_beat_at,
       latest.memory_usage_mb, latest.children_memory_mb, latest.cpu_percent, latest.tasks_running,
       coalesce(latest.children, '[]')
  FROM horsies_workers AS worker
  LEFT JOIN LATERAL (SELECT memory_usage_mb, children_memory_mb, cpu_percent, tasks_running, children
                       FROM horsies_worker_states AS state
                      WHERE state.worker_id = worker.worker_id ORDER BY snapshot_at DESC LIMIT 1) AS latest ON true
 ORDER BY worker.dead_at IS NOT NULL OR worker.lease_expires_at < now(), worker.started_at, worker.worker_id;

-- name: children
-- What the children run: tasks that their workers last named, and those at the head of each queue, where the ones that
-- were taken stand.
WITH RECURSIVE live (queue_name) AS (
    (SELECT queue_name FROM horsies_tasks_live WHERE priority <> 0 ORDER BY queue_name LIMIT 1)
    UNION ALL
    SELECT (SELECT task.queue_name FROM horsies_tasks_live AS task
             WHERE task.queue_name > live.queue_name AND task.priority <> 0 ORDER BY task.queue_name LIMIT 1)
      FROM live WHERE live.queue_name IS NOT NULL
), candidates AS (
    SELECT unnest(latest.current_task_ids) AS id FROM horsies_workers AS worker
     CROSS JOIN LATERAL (SELECT current_task_ids FROM horsies_worker_states AS state
                          WHERE state.worker_id = worker.worker_id ORDER BY snapshot_at DESC LIMIT 1) AS latest
     WHERE worker.dead_at IS NULL
    UNION
    SELECT head.id FROM live
     CROSS JOIN LATERAL (SELECT task.id FROM horsies_tasks_live AS task
                          WHERE task.queue_name = live.queue_name AND task.priority <> 0
                          ORDER BY task.queue_name, is_async, rate_key, priority, enqueued_at, id
                          LIMIT 1000) AS head
)
SELECT task.id::text, task.task_name, task.queue_name, task.claimed_by_worker_id::text, task.worker_pid, task.started_at,
       (SELECT memory_mb FROM horsies_heartbeats AS beat WHERE beat.task_id = task.id AND beat.role = 'runner'
         ORDER BY sent_at DESC LIMIT 1)
  FROM candidates
 CROSS JOIN LATERAL (SELECT * FROM horsies_tasks_live AS task WHERE task.id = candidates.id LIMIT 1) AS task
 WHERE task.status = 'RUNNING'
 ORDER BY task.started_at, task.id
 LIMIT 1000;

-- name: tasks
-- Of the tasks sent last, those that fit, newest first; `most` are looked at.
SELECT id::text, task_name, status, queue_name, priority, earlier_attempts + retry_count + (started_at IS NOT NULL)::int,
       max_retries, sent_at, enqueued_at, started_at, terminal_at, error_code, left(kwargs, 200), workflow_id::text
  FROM (SELECT * FROM horsies_tasks
         WHERE id < %(before)s AND id >= %(after)s
         ORDER BY id DESC LIMIT %(most)s) AS newest
 WHERE (%(status)s::text IS NULL OR status = %(status)s)
   AND (%(name)s::text IS NULL OR task_name = %(name)s)
   AND (%(queue)s::text IS NULL OR queue_name = %(queue)s)
   AND (%(code)s::text IS NULL OR error_code = %(code)s)
   AND (%(q)s::text IS NULL OR strpos(lower(task_name), lower(%(q)s)) > 0 OR strpos(kwargs, %(q)s) > 0
        OR strpos(args, %(q)s) > 0 OR error_code = %(q)s)
 ORDER BY newest.id DESC
 LIMIT %(limit)s;

-- name: tasks_end
-- Where a look at so many tasks ends.
SELECT id, sent_at FROM horsies_tasks WHERE id < %(before)s AND id >= %(after)s
 ORDER BY id DESC OFFSET %(most)s - 1 LIMIT 1;

-- name: live_tasks
-- The same of tasks that have not ended.
SELECT id::text, task_name, status, queue_name, priority, earlier_attempts + retry_count + (started_at IS NOT NULL)::int,
       max_retries, sent_at, enqueued_at, started_at, terminal_at, error_code, left(kwargs, 200), workflow_id::text
  FROM (SELECT * FROM horsies_tasks_live
         WHERE id < %(before)s AND id >= %(after)s
         ORDER BY id DESC LIMIT %(most)s) AS newest
 WHERE (%(status)s::text IS NULL OR status = %(status)s)
   AND (%(name)s::text IS NULL OR task_name = %(name)s)
   AND (%(queue)s::text IS NULL OR queue_name = %(queue)s)
   AND (%(code)s::text IS NULL OR error_code = %(code)s)
   AND (%(q)s::text IS NULL OR strpos(lower(task_name), lower(%(q)s)) > 0 OR strpos(kwargs, %(q)s) > 0
        OR strpos(args, %(q)s) > 0 OR error_code = %(q)s)
 ORDER BY newest.id DESC
 LIMIT %(limit)s;

-- name: live_tasks_end
SELECT id, sent_at FROM horsies_tasks_live WHERE id < %(before)s AND id >= %(after)s
 ORDER BY id DESC OFFSET %(most)s - 1 LIMIT 1;

-- name: failed_tasks
-- The same of tasks that failed, those that failed last first.
SELECT id::text, task_name, status, queue_name, priority, earlier_attempts + retry_count + (started_at IS NOT NULL)::int,
       max_retries, sent_at, enqueued_at, started_at, terminal_at, error_code, left(kwargs, 200), workflow_id::text
  FROM (SELECT * FROM horsies_tasks_history
         WHERE status = 'FAILED' AND (terminal_at, id) < (%(ended)s::timestamptz, %(before)s::uuid)
           AND terminal_at >= %(since)s
         ORDER BY terminal_at DESC, id DESC LIMIT %(most)s) AS newest
 WHERE (%(name)s::text IS NULL OR task_name = %(name)s)
   AND (%(queue)s::text IS NULL OR queue_name = %(queue)s)
   AND (%(code)s::text IS NULL OR error_code = %(code)s)
   AND (%(q)s::text IS NULL OR strpos(lower(task_name), lower(%(q)s)) > 0 OR strpos(kwargs, %(q)s) > 0
        OR strpos(args, %(q)s) > 0 OR error_code = %(q)s)
 ORDER BY newest.terminal_at DESC, newest.id DESC
 LIMIT %(limit)s;

-- name: failed_tasks_end
SELECT id, terminal_at FROM horsies_tasks_history
 WHERE status = 'FAILED' AND (terminal_at, id) < (%(ended)s::timestamptz, %(before)s::uuid) AND terminal_at >= %(since)s
 ORDER BY terminal_at DESC, id DESC OFFSET %(most)s - 1 LIMIT 1;

-- name: codes
-- The error codes of the tasks that failed last.
SELECT error_code, count(*)
  FROM (SELECT error_code FROM horsies_tasks_history WHERE status = 'FAILED'
         ORDER BY terminal_at DESC, id DESC LIMIT 1000) AS latest
 WHERE error_code IS NOT NULL
 GROUP BY error_code ORDER BY count(*) DESC, error_code LIMIT 20;

-- name: task
-- One task; its arguments and result are cut to what a page shows.
SELECT id::text, task_name, status, queue_name, priority, earlier_attempts + retry_count + (started_at IS NOT NULL)::int,
       max_retries, sent_at, enqueued_at, started_at, terminal_at, error_code, left(kwargs, 200), workflow_id::text,
       retry_count, next_retry_at, claimed_at, good_until, timeout_ms, tags, is_async, crash_count, unique_key,
       failed_reason, claimed_by_worker_id::text, worker_hostname, worker_pid, worker_process_name, claim_seq,
       cancel_asked_at, left(args, %(shown)s), length(args), left(kwargs, %(shown)s), length(kwargs), left(result, %(shown)s), length(result)
  FROM horsies_tasks
 WHERE id = %(id)s
 ORDER BY live DESC
 LIMIT 1;

-- name: attempts
-- The attempts that were followed by another, newest first.
SELECT attempt, outcome, started_at, finished_at, error_code, error_message, failed_reason, worker_hostname, worker_pid,
       requeued_at, traceback
  FROM horsies_attempts WHERE task_id = %(id)s ORDER BY attempt DESC, finished_at DESC LIMIT 200;

-- name: payload
-- The arguments or the result of a task, whole.
SELECT CASE %(part)s WHEN 'args' THEN args WHEN 'kwargs' THEN kwargs ELSE result END
  FROM horsies_tasks WHERE id = %(id)s ORDER BY live DESC LIMIT 1;

-- name: workflows
-- The workflows started last, newest first; `most` are looked at.
SELECT flow.id::text, name, flow.status, sent_at, started_at, completed_at, definition_key, parent_workflow_id::text,
       left(error, 2000), nodes.total, nodes.completed, nodes.failed, nodes.running
  FROM (SELECT * FROM (SELECT * FROM horsies_workflows WHERE id < %(before)s ORDER BY id DESC LIMIT %(most)s) AS newest
         WHERE (%(status)s::text IS NULL OR status = %(status)s) AND (%(name)s::text IS NULL OR name = %(name)s)
           AND (%(parts)s OR parent_workflow_id IS NULL)
         ORDER BY newest.id DESC LIMIT %(limit)s) AS flow
 CROSS JOIN LATERAL (
       SELECT count(*) AS total, count(*) FILTER (WHERE status = 'COMPLETED') AS completed,
              count(*) FILTER (WHERE status IN ('FAILED', 'SKIPPED')) AS failed,
              count(*) FILTER (WHERE status IN ('ENQUEUED', 'RUNNING')) AS running
         FROM horsies_workflow_tasks AS node WHERE node.workflow_id = flow.id) AS nodes
 ORDER BY flow.id DESC;

-- name: workflow
SELECT id::text, name, status, sent_at, started_at, completed_at, definition_key, parent_workflow_id::text,
       left(error, 2000), deadline_at, on_error
  FROM horsies_workflows WHERE id = %(id)s;

-- name: nodes
-- The nodes of a workflow in order, as many as can be drawn. One whose task has been taken up shows as running.
SELECT node.task_index, node.node_id, node.kind, node.task_name,
       CASE WHEN node.status = 'ENQUEUED' AND (task.status = 'RUNNING' OR task.retry_count > 0) THEN 'RUNNING'
            ELSE node.status END,
       node.task_id::text, node.sub_workflow_id::text, node.dependencies, coalesce(task.started_at, node.started_at),
       node.completed_at, node.due_at
  FROM horsies_workflow_tasks AS node
  LEFT JOIN LATERAL (SELECT live.status, live.retry_count, live.started_at FROM horsies_tasks_live AS live
                      WHERE live.id = node.task_id) AS task ON node.status = 'ENQUEUED'
 WHERE node.workflow_id = %(id)s
 ORDER BY node.task_index
 LIMIT %(limit)s;

-- name: actions
-- What operators did last.
SELECT acted_at, actor, action, subject, tasks FROM horsies_actions ORDER BY id DESC LIMIT %(limit)s;

-- name: totals
SELECT queue_name, task_name, completed, failed, cancelled, expired, wait_ms, run_ms, waits, runs FROM horsies_totals
 ORDER BY queue_name, task_name;

-- name: count_finished
-- How many finished tasks fit. A task of a workflow goes with its workflow.
SELECT count(*) FROM horsies_tasks_history AS task
 WHERE workflow_id IS NULL AND (%(ids)s::uuid[] IS NULL OR task.id = ANY (%(ids)s::uuid[]))
   AND (%(status)s::text IS NULL OR status = %(status)s)
   AND (%(queue)s::text IS NULL OR queue_name = %(queue)s)
   AND (%(name)s::text IS NULL OR task_name = %(name)s)
   AND (%(code)s::text IS NULL OR error_code = %(code)s);

-- name: count_live
-- How many tasks that have not ended fit.
SELECT count(*) FROM horsies_tasks_live AS task
 WHERE cancel_asked_at IS NULL AND (%(ids)s::uuid[] IS NULL OR task.id = ANY (%(ids)s::uuid[]))
   AND (%(status)s::text IS NULL OR status = %(status)s)
   AND (%(queue)s::text IS NULL OR queue_name = %(queue)s)
   AND (%(name)s::text IS NULL OR task_name = %(name)s);

-- name: finished
-- Which finished tasks fit, so many of them, and when each ended.
SELECT id, terminal_at FROM horsies_tasks_history AS task
 WHERE workflow_id IS NULL AND (%(ids)s::uuid[] IS NULL OR task.id = ANY (%(ids)s::uuid[]))
   AND (%(status)s::text IS NULL OR status = %(status)s)
   AND (%(queue)s::text IS NULL OR queue_name = %(queue)s)
   AND (%(name)s::text IS NULL OR task_name = %(name)s)
   AND (%(code)s::text IS NULL OR error_code = %(code)s)
 LIMIT %(most)s;

-- name: resend
-- Send a task like another one, with arguments of its own.
INSERT INTO horsies_tasks_live (id, task_name, queue_name, is_async, priority, kwargs, timeout_ms, max_retries,
                                task_options, rate_key)
SELECT %(new_id)s, task_name, queue_name, is_async, priority, %(kwargs)s, timeout_ms, max_retries, task_options, rate_key
  FROM horsies_tasks WHERE id = %(id)s ORDER BY live DESC LIMIT 1
RETURNING id::text;
