-- name: fail
-- Fail a task whose row cannot be settled, and move it to history.
UPDATE horsies_tasks AS task
   SET live = false, status = 'FAILED', error_code = 'POISONED_ROW', result = %(result)s, failed_reason = %(reason)s,
       failed_at = now(), terminal_at = now()
 WHERE task.live AND task.id = %(id)s AND task.claim_seq = %(claim_seq)s
   AND task.status IN ('PENDING', 'CLAIMED', 'RUNNING')
RETURNING CASE WHEN task.awaited THEN pg_notify('task_done', task.id::text) END;

-- name: fail_in_place
-- Fail a task that cannot be moved to history, such as one whose id is taken there. It stays in the live table, where nobody
-- claims, rescues or expires it, and gives up its unique key.
UPDATE horsies_tasks_live AS task
   SET status = 'FAILED', error_code = 'POISONED_ROW', result = %(result)s, failed_reason = %(reason)s, failed_at = now(),
       claimed_by_worker_id = coalesce(task.claimed_by_worker_id, %(worker_id)s), unique_key = NULL, follows = NULL, good_until = NULL
 WHERE task.id = %(id)s AND task.claim_seq = %(claim_seq)s AND task.status IN ('PENDING', 'CLAIMED', 'RUNNING')
RETURNING CASE WHEN task.awaited THEN pg_notify('task_done', task.id::text) END;

-- name: fail_tree
-- Fail a workflow that cannot be advanced, with all workflows of its tree that have not ended.
WITH RECURSIVE tree (id) AS (
    SELECT root_workflow_id FROM horsies_workflows WHERE id = %(id)s
    UNION
    SELECT %(id)s::uuid
    UNION
    SELECT flow.id FROM tree JOIN horsies_workflows AS flow ON flow.parent_workflow_id = tree.id
), failed AS (
    UPDATE horsies_workflows AS flow
       SET status = 'FAILED', error = %(error)s, completed_at = now(), deadline_at = NULL, open_tasks = 0
     WHERE flow.id = ANY (ARRAY (SELECT id FROM tree)) AND flow.status IN ('PENDING', 'RUNNING', 'PAUSED')
    RETURNING flow.id, flow.awaited
), notified AS (
    SELECT count(CASE WHEN awaited THEN pg_notify('workflow_done', id::text) END) FROM failed
)
SELECT tree.id::text, tree.id IN (SELECT id FROM failed) FROM tree CROSS JOIN notified;

-- name: skip_nodes
-- Skip the nodes of these workflows that have not ended, and clear their timers.
UPDATE horsies_workflow_tasks AS node
   SET status = CASE WHEN node.status IN ('COMPLETED', 'FAILED', 'SKIPPED') THEN node.status ELSE 'SKIPPED' END,
       due_at = NULL
 WHERE node.workflow_id = ANY (%(ids)s::uuid[])
   AND (node.due_at IS NOT NULL OR node.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED'));

-- name: waiting_tasks
SELECT task.id::text, task.claim_seq
  FROM horsies_workflow_tasks AS node
  JOIN horsies_tasks_live AS task
    ON task.id = node.task_id AND task.workflow_id = node.workflow_id AND task.workflow_index = node.task_index
 WHERE node.workflow_id = ANY (%(ids)s::uuid[]) AND task.status IN ('PENDING', 'CLAIMED');

-- name: cancel
UPDATE horsies_tasks AS task
   SET live = false, status = 'CANCELLED', error_code = 'TASK_CANCELLED', result = %(result)s, terminal_at = now()
 WHERE task.live AND task.id = %(id)s AND task.claim_seq = %(claim_seq)s AND task.status IN ('PENDING', 'CLAIMED')
RETURNING CASE WHEN task.awaited THEN pg_notify('task_done', task.id::text) END;

-- name: claimable
-- Return the first tasks of each lane that a claim would take, in its order. A lane of keys has the first tasks of each key.
SELECT task.id::text, task.claim_seq, task.workflow_id::text, task.workflow_index
  FROM (SELECT given.queue_name, given.is_async, key.rate_key, given.quota
          FROM json_to_recordset(CAST(%(lines)s AS json))
               AS given (queue_name text, is_async boolean, rate_key text, quota integer)
         CROSS JOIN LATERAL (
               SELECT given.rate_key WHERE given.rate_key IS NOT NULL
               UNION ALL
               SELECT DISTINCT task.rate_key FROM horsies_tasks_live AS task
                WHERE given.rate_key IS NULL AND task.queue_name = given.queue_name AND task.is_async = given.is_async
                  AND task.rate_key >= 'key=' AND task.rate_key < 'key>' AND task.priority <> 0 AND task.parked_at IS NULL) AS key) AS lane
 CROSS JOIN LATERAL (
       SELECT id, claim_seq, workflow_id, workflow_index FROM horsies_tasks_live AS task
        WHERE task.queue_name = lane.queue_name AND task.is_async = lane.is_async
          AND task.rate_key = lane.rate_key AND task.priority <> 0 AND task.parked_at IS NULL
          AND task.enqueued_at <= now() AND task.status = 'PENDING'
          AND (task.good_until IS NULL OR task.good_until > now())
        ORDER BY task.priority, task.enqueued_at, task.id LIMIT lane.quota) AS task;

-- name: try_claim
-- Do to a row what a claim does, in a transaction that is rolled back.
UPDATE horsies_tasks_live AS task
   SET claim_seq = task.claim_seq + 1, status = 'RUNNING', claimed_at = now(), started_at = now(),
       claimed_by_worker_id = %(worker_id)s
 WHERE task.id = %(id)s AND task.claim_seq = %(claim_seq)s AND task.status = 'PENDING';
