-- name: workflows
SELECT DISTINCT workflow_id FROM horsies_tasks WHERE live AND id = ANY (%(ids)s::uuid[]) AND workflow_id IS NOT NULL;

-- name: cancel
-- Cancel tasks that were not started, and ask running ones to stop. A locked row is about to change: it is skipped, and the
-- caller asks again. The worker of a running task is notified, and polls in any case. The node is NULL for a task that names a
-- node which belongs to another task.
WITH found AS MATERIALIZED (
    SELECT id, status = 'RUNNING' AS runs FROM horsies_tasks
     WHERE live AND id = ANY (%(ids)s::uuid[]) ORDER BY id FOR UPDATE SKIP LOCKED
), cancelled AS (
    UPDATE horsies_tasks AS task
       SET live = runs,
           status = CASE WHEN runs THEN 'RUNNING' ELSE 'CANCELLED' END,
           claim_seq = task.claim_seq + (NOT runs)::int,
           cancel_asked_at = coalesce(task.cancel_asked_at, now()),
           error_code = CASE WHEN NOT runs THEN 'TASK_CANCELLED' END,
           result = CASE WHEN NOT runs THEN %(result)s END,
           terminal_at = CASE WHEN NOT runs THEN now() END
      FROM found
     WHERE task.live AND task.id = found.id AND task.id = ANY (%(ids)s::uuid[])
    RETURNING task.id, task.status, task.awaited, task.workflow_id, task.workflow_index, task.claimed_by_worker_id
), notified AS (
    SELECT count(CASE WHEN status = 'CANCELLED' AND awaited THEN pg_notify('task_done', id::text) END) FROM cancelled
), asked AS (
    SELECT count(pg_notify('horsies_control', worker_id::text))
      FROM (SELECT DISTINCT claimed_by_worker_id AS worker_id FROM cancelled WHERE status = 'RUNNING') AS holder
)
SELECT cancelled.id::text, cancelled.status, node.workflow_id::text, node.task_index
  FROM cancelled CROSS JOIN notified CROSS JOIN asked
  LEFT JOIN horsies_workflow_tasks AS node
    ON node.workflow_id = cancelled.workflow_id AND node.task_index = cancelled.workflow_index
   AND node.task_id = cancelled.id;

-- name: states
SELECT id::text, status, live FROM horsies_tasks WHERE id = ANY (%(ids)s::uuid[]) AND (live OR terminal_at >= %(since)s)
 ORDER BY live;

-- name: cancellable
-- Return live tasks that match and were not asked to stop yet, in the order of their ids, from an id on.
SELECT id::text FROM horsies_tasks AS task
 WHERE live AND id > %(after)s::uuid AND cancel_asked_at IS NULL AND {is_selected}
 ORDER BY id LIMIT %(batch)s;

-- name: unheld
-- Return the tasks of a worker that were asked to stop and that it does not run any more.
SELECT id::text, claim_seq, workflow_id::text, workflow_index FROM horsies_tasks_live AS task
 WHERE task.claimed_by_worker_id = %(worker_id)s AND task.cancel_asked_at IS NOT NULL
   AND (task.id, task.claim_seq) NOT IN (SELECT id, claim_seq FROM json_to_recordset(CAST(%(keep)s AS json))
                                             AS held (id uuid, claim_seq integer));
