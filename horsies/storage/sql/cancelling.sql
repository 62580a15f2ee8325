-- name: workflows
-- The workflows that these tasks belong to.
SELECT DISTINCT workflow_id FROM horsies_tasks
 WHERE live AND id = ANY (%(ids)s::uuid[]) AND workflow_id IS NOT NULL;

-- name: cancel
-- End tasks that have not begun, and ask those that run to stop. A row that is locked right now is about to change: it is
-- passed over and asked for again. The worker that runs one is told at once, and asks by itself in any case.
WITH found AS MATERIALIZED (
    SELECT id, status = 'RUNNING' AS runs FROM horsies_tasks
     WHERE live AND id = ANY (%(ids)s::uuid[])
     ORDER BY id
       FOR UPDATE SKIP LOCKED
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
), told AS (
    SELECT count(CASE WHEN status = 'CANCELLED' AND awaited THEN pg_notify('task_done', id::text) END) FROM cancelled
), asked AS (
    SELECT count(pg_notify('horsies_control', worker_id::text))
      FROM (SELECT DISTINCT claimed_by_worker_id AS worker_id FROM cancelled WHERE status = 'RUNNING') AS holder
)
SELECT id::text, status, workflow_id::text, workflow_index FROM cancelled CROSS JOIN told CROSS JOIN asked;

-- name: states
SELECT id::text, status, live FROM horsies_tasks WHERE id = ANY (%(ids)s::uuid[]) AND (live OR terminal_at >= %(since)s);

-- name: matching
-- Tasks that could be cancelled, as far as they fit what is asked for, from an id on.
SELECT id::text FROM horsies_tasks
 WHERE live AND id > %(after)s::uuid
   AND (%(status)s::text IS NULL OR status = %(status)s)
   AND (%(name)s::text IS NULL OR task_name = %(name)s)
   AND (%(queue)s::text IS NULL OR queue_name = %(queue)s)
   AND (%(code)s::text IS NULL OR error_code = %(code)s)
   AND cancel_asked_at IS NULL
 ORDER BY id
 LIMIT %(batch)s;

-- name: unheld
-- Tasks in a worker's name that were asked to stop and that it does not run any more.
SELECT id::text, claim_seq, workflow_id::text, workflow_index FROM horsies_tasks_live AS task
 WHERE task.claimed_by_worker_id = %(worker_id)s AND task.cancel_asked_at IS NOT NULL
   AND (task.id, task.claim_seq) NOT IN (SELECT id, claim_seq FROM json_to_recordset(CAST(%(keep)s AS json))
                                             AS held (id uuid, claim_seq integer));
