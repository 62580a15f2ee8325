-- name: drop_days
SELECT horsies_drop_history(%(before)s);

-- name: old
-- Tasks that ended before a moment, in one queue, or in all but some, and in one state if one is named.
SELECT id, terminal_at FROM horsies_tasks_history AS task
 WHERE terminal_at < %(before)s
   AND (%(queue)s::text IS NULL OR queue_name = %(queue)s)
   AND queue_name <> ALL (%(others)s::text[])
   AND (%(status)s::text IS NULL OR status = %(status)s)
   AND (%(name)s::text IS NULL OR task_name = %(name)s)
 LIMIT %(most)s;

-- name: count_old
SELECT count(*) FROM horsies_tasks_history AS task
 WHERE terminal_at < %(before)s
   AND (%(queue)s::text IS NULL OR queue_name = %(queue)s)
   AND queue_name <> ALL (%(others)s::text[])
   AND (%(status)s::text IS NULL OR status = %(status)s)
   AND (%(name)s::text IS NULL OR task_name = %(name)s);

-- name: delete
-- Delete finished tasks and what is kept with them. The moment at which each ended names the one partition it is in.
WITH gone AS (
    DELETE FROM horsies_tasks_history AS task
     USING unnest(%(ids)s::uuid[], %(ended)s::timestamptz[]) AS old (id, terminal_at)
     WHERE task.id = old.id AND task.terminal_at = old.terminal_at
    RETURNING task.id
), attempts AS (
    DELETE FROM horsies_attempts AS attempt USING gone WHERE attempt.task_id = gone.id
), progress AS (
    DELETE FROM horsies_progress AS progress USING gone WHERE progress.task_id = gone.id
), logs AS (
    DELETE FROM horsies_task_logs AS line USING gone WHERE line.task_id = gone.id
)
SELECT id FROM gone;

-- name: forget_results
-- Let go of results, one batch; the record of the task stays.
WITH old AS (
    SELECT id, terminal_at FROM horsies_tasks_history
     WHERE terminal_at < %(before)s AND result IS NOT NULL
     LIMIT %(batch)s
       FOR UPDATE SKIP LOCKED
)
UPDATE horsies_tasks AS task SET result = NULL FROM old
 WHERE NOT task.live AND task.id = old.id AND task.terminal_at = old.terminal_at
RETURNING task.id;

-- name: forget_attempts
-- Attempts of tasks that are gone, one batch.
DELETE FROM horsies_attempts AS attempt
 USING (SELECT task_id, claim_seq FROM horsies_attempts AS attempt
         WHERE finished_at < %(before)s
           AND NOT EXISTS (SELECT FROM horsies_tasks WHERE id = attempt.task_id)
         ORDER BY finished_at
         LIMIT %(batch)s) AS old
 WHERE attempt.task_id = old.task_id AND attempt.claim_seq = old.claim_seq;

-- name: forget_progress
-- What tasks that are gone have said of how far they were, one batch.
DELETE FROM horsies_progress AS progress
 USING (SELECT task_id FROM horsies_progress AS progress
         WHERE at < %(before)s
           AND NOT EXISTS (SELECT FROM horsies_tasks WHERE id = progress.task_id)
         ORDER BY at
         LIMIT %(batch)s) AS old
 WHERE progress.task_id = old.task_id;

-- name: forget_logs
-- What tasks that are gone have logged, one batch.
DELETE FROM horsies_task_logs AS line
 USING (SELECT task_id, claim_seq, seq FROM horsies_task_logs AS line
         WHERE at < %(before)s
           AND NOT EXISTS (SELECT FROM horsies_tasks WHERE id = line.task_id)
         ORDER BY at
         LIMIT %(batch)s) AS old
 WHERE line.task_id = old.task_id AND line.claim_seq = old.claim_seq AND line.seq = old.seq;

-- name: forget_keys
-- Idempotency keys of tasks that are gone, one batch.
DELETE FROM horsies_idempotency_keys AS key
 USING (SELECT idempotency_key FROM horsies_idempotency_keys AS key
         WHERE created_at < %(before)s
           AND NOT EXISTS (SELECT FROM horsies_tasks WHERE id = key.task_id)
         ORDER BY created_at
         LIMIT %(batch)s) AS old
 WHERE key.idempotency_key = old.idempotency_key;

-- name: forget_actions
DELETE FROM horsies_actions AS action
 USING (SELECT id FROM horsies_actions WHERE acted_at < %(before)s ORDER BY id LIMIT %(batch)s) AS old
 WHERE action.id = old.id;

-- name: forget_workflows
-- Workflows that are over, one batch, with all their parts and nodes.
WITH RECURSIVE tree AS (
    (SELECT id FROM horsies_workflows
      WHERE completed_at < %(before)s AND parent_workflow_id IS NULL AND open_tasks = 0
      LIMIT %(batch)s)
    UNION ALL
    SELECT part.id FROM tree JOIN horsies_workflows AS part ON part.parent_workflow_id = tree.id
), nodes AS (
    DELETE FROM horsies_workflow_tasks AS node USING tree WHERE node.workflow_id = tree.id
)
DELETE FROM horsies_workflows AS flow USING tree WHERE flow.id = tree.id;
