-- name: horizon
-- Return the time up to which no event can be added any more. The times in rows are those at which transactions began, so an
-- open transaction may still add to the past. It is waited for: for a minute, or for ten seconds if it has written nothing so
-- far. A transaction becomes visible here a moment after it began, so the last fifth of a second is left out. A role that may
-- not see other sessions stays five seconds behind. Run this before `events`, so that these include whatever commits in
-- between.
SELECT greatest(now() - interval '1 minute',
                least(now() - CASE WHEN bool_or(query = '<insufficient privilege>') THEN interval '5 s' ELSE interval '0.2 s' END,
                      min(CASE WHEN backend_xid IS NULL THEN greatest(xact_start, now() - interval '10 s') ELSE xact_start END)
                          FILTER (WHERE xact_start IS NOT NULL) - interval '1 us'))
  FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid();

-- name: events
-- Read the events after one time up to another. A task in history was sent and started before it ended, so only the tasks
-- that ended since are read from there. No index has the start of running tasks, so the live table is read as a whole.
--
-- The `sent_at` of a schedule's task is its slot, a whole second that may be long past. Such a task was queued when it was
-- first due.
--
-- The column `stored` is the text that contains the message. It is not decoded here: a text that is no JSON would fail the
-- statement.
WITH task AS NOT MATERIALIZED (
    SELECT *, CASE WHEN date_trunc('second', sent_at) = sent_at AND retry_count = 0 AND earlier_attempts = 0
                        AND workflow_id IS NULL THEN enqueued_at ELSE sent_at END AS queued_at
      FROM horsies_tasks
     WHERE %(task)s::uuid IS NULL OR id = %(task)s
), event (kind, at, subject, task_id, task_name, queue_name, attempt, error_code, message, worker_id, will_retry,
          workflow_id, workflow_name, schedule_name, stored, lane) AS (
    SELECT step.kind, step.at, task.id::text, task.id, task.task_name, task.queue_name,
           CASE step.kind WHEN 'queued' THEN 1 ELSE task.earlier_attempts::integer + task.retry_count + 1 END,
           NULL, NULL, CASE step.kind WHEN 'queued' THEN NULL ELSE task.claimed_by_worker_id END, false,
           task.workflow_id, NULL, NULL, NULL, task.rate_key
      FROM task
     CROSS JOIN LATERAL (VALUES ('queued', task.queued_at), ('processing', task.started_at)) AS step (kind, at)
     WHERE task.live AND greatest(task.queued_at, task.started_at) > %(since)s
    UNION ALL
    SELECT step.kind, step.at, task.id::text, task.id, task.task_name, task.queue_name,
           CASE WHEN step.kind = 'queued' THEN 1
                WHEN task.started_at IS NOT NULL THEN task.earlier_attempts::integer + task.retry_count + 1 END,
           CASE WHEN step.ends THEN task.error_code END,
           CASE WHEN step.ends AND task.error_code IS NOT NULL
                THEN left(task.failed_reason, 20000) END,
           CASE step.kind WHEN 'queued' THEN NULL ELSE task.claimed_by_worker_id END, false, task.workflow_id, NULL, NULL,
           CASE WHEN step.ends AND task.error_code IS NOT NULL THEN left(task.result, 20000) END,
           task.rate_key
      FROM task
     CROSS JOIN LATERAL (VALUES ('queued', task.queued_at, false), ('processing', task.started_at, false),
                                (CASE WHEN task.status <> 'FAILED' THEN lower(task.status)
                                      WHEN task.error_code = 'TASK_TIMEOUT' THEN 'timeout'
                                      WHEN task.error_code = 'WORKER_CRASHED' THEN 'crashed'
                                      ELSE 'failed' END, task.terminal_at, true)) AS step (kind, at, ends)
     WHERE NOT task.live AND task.terminal_at > %(since)s
    UNION ALL
    SELECT step.kind, step.at, attempt.task_id::text, attempt.task_id, task.task_name, task.queue_name,
           attempt.attempt::bigint + (step.kind = 'queued')::integer,
           CASE WHEN step.ends THEN attempt.error_code END,
           CASE WHEN step.ends THEN left(attempt.error_message, 20000) END,
           CASE step.kind WHEN 'queued' THEN NULL ELSE attempt.worker_id END, step.ends AND attempt.requeued_at IS NULL,
           task.workflow_id, NULL, NULL, NULL, task.rate_key
      FROM horsies_attempts AS attempt
     CROSS JOIN LATERAL (VALUES ('processing', attempt.started_at, false), ('queued', attempt.requeued_at, false),
                                (CASE WHEN attempt.error_code = 'TASK_TIMEOUT' THEN 'timeout'
                                      WHEN attempt.error_code = 'WORKER_CRASHED' THEN 'crashed'
                                      WHEN attempt.requeued_at IS NULL THEN 'retry'
                                      ELSE 'failed' END, attempt.finished_at, true)) AS step (kind, at, ends)
      LEFT JOIN LATERAL (SELECT task_name, queue_name, workflow_id, rate_key FROM horsies_tasks AS task
                          WHERE task.id = attempt.task_id AND (task.live OR task.terminal_at >= attempt.finished_at)
                          LIMIT 1) AS task ON true
     WHERE (attempt.finished_at > %(since)s OR attempt.requeued_at > %(since)s)
       AND (%(task)s::uuid IS NULL OR attempt.task_id = %(task)s)
    UNION ALL
    SELECT 'parked', step.started_at, step.task_id::text, step.task_id, task.task_name, task.queue_name, step.attempt, NULL,
           'in step ' || left(step.name, 300), NULL, false, task.workflow_id, NULL, NULL, NULL,
           task.rate_key
      FROM horsies_steps AS step
      LEFT JOIN LATERAL (SELECT task_name, queue_name, workflow_id, rate_key FROM horsies_tasks AS task
                          WHERE task.id = step.task_id AND (task.live OR task.terminal_at >= step.started_at)
                          LIMIT 1) AS task ON true
     WHERE step.started_at > %(since)s AND step.kind IN ('sleep', 'wait', 'call', 'calls')
       AND step.ended_at IS DISTINCT FROM step.started_at
       AND (%(task)s::uuid IS NULL OR step.task_id = %(task)s)
    UNION ALL
    SELECT step.kind, step.at, flow.id::text, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, flow.id, flow.name, NULL,
           step.stored, NULL
      FROM horsies_workflows AS flow
     CROSS JOIN LATERAL (VALUES ('workflow.started', flow.started_at, NULL), ('workflow.paused', flow.paused_at, NULL),
                                ('workflow.resumed', flow.resumed_at, NULL),
                                ('workflow.' || lower(flow.status), flow.completed_at,
                                 '{"err":' || left(flow.error, 20000) || '}'))
                       AS step (kind, at, stored)
     WHERE (flow.started_at > %(since)s OR flow.completed_at > %(since)s
            OR flow.paused_at > %(since)s OR flow.resumed_at > %(since)s)
       AND %(task)s::uuid IS NULL
    UNION ALL
    SELECT 'schedule.fired', fired_at, schedule_name, last_task_id, NULL, NULL, NULL, NULL,
           'for ' || to_char(last_run_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), NULL, false, NULL, NULL,
           schedule_name, NULL, NULL
      FROM horsies_schedule_state
     WHERE fired_at > %(since)s AND (%(task)s::uuid IS NULL OR last_task_id = %(task)s)
)
SELECT left(kind, 300) AS kind, at, task_id::text AS task_id, left(task_name, 300) AS task_name,
       left(queue_name, 300) AS queue_name, attempt, left(error_code, 300) AS error_code, message,
       worker_id::text AS worker_id, will_retry, workflow_id::text AS workflow_id, left(workflow_name, 300) AS workflow_name,
       schedule_name, stored, CASE WHEN starts_with(lane, 'key=') THEN left(substr(lane, 5), 300) END AS key
  FROM event
 WHERE at > %(since)s AND at <= %(until)s
   AND (%(kinds)s::text[] IS NULL OR kind = ANY (%(kinds)s))
   AND (%(queue)s::text IS NULL OR queue_name = %(queue)s)
   AND (%(key)s::text IS NULL OR lane = 'key=' || %(key)s)
   AND (%(name)s::text IS NULL OR coalesce(task_name, workflow_name, schedule_name) = %(name)s)
 ORDER BY at, subject, kind;

-- name: position
SELECT position FROM horsies_event_cursors WHERE sink = %(sink)s;

-- name: save_position
-- A position never goes back. If two readers serve one sink, the slower one sends events again that were accepted before.
INSERT INTO horsies_event_cursors AS known (sink, position) VALUES (%(sink)s, %(position)s)
ON CONFLICT (sink) DO UPDATE SET position = greatest(known.position, excluded.position), updated_at = now();
