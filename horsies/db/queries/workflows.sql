-- name: start
-- Store a workflow with its sub-workflows and nodes, and enqueue the tasks that can start. Do nothing if the id exists.
SELECT horsies_start_workflow(CAST(%(id)s AS uuid), CAST(%(flows)s AS json), CAST(%(nodes)s AS json));

-- name: name_of
SELECT name FROM horsies_workflows WHERE id = CAST(%(id)s AS uuid);

-- name: wake_for_start
-- Notify the workers of these queues, and with `timers` all workers, whether they wait or not: the caller's transaction may
-- commit long after the start checked whether a worker waits.
SELECT pg_notify(horsies_queue_channel(queue_name), '')
  FROM (SELECT given.queue_name FROM json_array_elements_text(CAST(%(queues)s AS json)) AS given (queue_name)
        UNION
        SELECT queues[1] FROM horsies_workers WHERE CAST(%(timers)s AS text) = 'yes' AND lease_expires_at > now()) AS touched
 WHERE queue_name IS NOT NULL;

-- name: living
-- Return the workflows that have not ended. A paused workflow has not ended.
SELECT id FROM horsies_workflows WHERE id = ANY (%(ids)s::uuid[]) AND status IN ('PENDING', 'RUNNING', 'PAUSED');

-- name: lock
-- Lock the trees of these workflows until the end of the transaction. This is a statement of its own, so that the next
-- statement sees what the previous holders of the lock have committed.
SELECT count(*)
  FROM (SELECT id FROM horsies_workflows
         WHERE id IN (SELECT root_workflow_id FROM horsies_workflows WHERE id = ANY (%(ids)s::uuid[]))
         ORDER BY id FOR NO KEY UPDATE) AS locked;

-- name: inactive
-- Return the workflows that neither run nor are paused: a failed task of theirs is not retried.
SELECT id::text FROM horsies_workflows WHERE id = ANY (%(ids)s::uuid[]) AND status NOT IN ('RUNNING', 'PAUSED');

-- name: complete
-- Complete tasks, as `settle_and_claim` does. Return those that this worker still held.
{complete} ) SELECT id::text, CASE WHEN awaited THEN pg_notify('task_done', id::text) END FROM ended;

-- fragment: node_columns
-- The fields of `Node`.
node.workflow_id::text, node.task_index, node.kind, node.status, node.join_type, node.min_success,
node.allow_failed_deps, node.open_deps, node.completed_deps, node.failed_deps, node.open_sources, node.dependents,
CASE WHEN node.join_type = 'all' THEN '{}' ELSE coalesce(node.workflow_ctx_from, '{}') END,
node.sub_workflow_id::text, node.result IS NOT NULL

-- name: complete_and_load
-- Complete tasks. Return their nodes, marked with the id of the task, and the nodes that depend on them. A task that names a
-- node which belongs to another task returns a row without a node.
{complete}, task.workflow_id, task.workflow_index
), notified AS MATERIALIZED (
    SELECT count(CASE WHEN awaited THEN pg_notify('task_done', id::text) END) FROM ended
), node AS MATERIALIZED (
    SELECT ended.id AS ended_id, node.* FROM ended
      LEFT JOIN horsies_workflow_tasks AS node
        ON node.workflow_id = ended.workflow_id AND node.task_index = ended.workflow_index AND node.task_id = ended.id
), needed AS MATERIALIZED (
    SELECT DISTINCT node.workflow_id, dependent AS task_index
      FROM node CROSS JOIN LATERAL unnest(node.dependents) AS dependent
)
SELECT {node_columns}, node.ended_id::text FROM node CROSS JOIN notified
UNION ALL
SELECT {node_columns}, NULL FROM needed JOIN horsies_workflow_tasks AS node USING (workflow_id, task_index)
 WHERE NOT EXISTS (SELECT FROM node AS own WHERE own.workflow_id = node.workflow_id AND own.task_index = node.task_index);

-- name: owners
SELECT node.task_id::text
  FROM json_to_recordset(CAST(%(tasks)s AS json)) AS given (id uuid, workflow_id uuid, task_index integer)
  JOIN horsies_workflow_tasks AS node
    ON node.workflow_id = given.workflow_id AND node.task_index = given.task_index AND node.task_id = given.id;

-- name: load_ended
-- Return the nodes that ended and their dependents; for those marked `deep`, the dependents of the dependents, and so on.
WITH RECURSIVE needed (workflow_id, task_index, deep, goes_on) AS (
    SELECT given.*, true FROM json_to_recordset(CAST(%(ended)s AS json))
                          AS given (workflow_id uuid, task_index integer, deep boolean)
    UNION
    SELECT needed.workflow_id, dependent, deep, deep
      FROM needed JOIN horsies_workflow_tasks AS node USING (workflow_id, task_index)
     CROSS JOIN LATERAL unnest(node.dependents) AS dependent
     WHERE goes_on
)
SELECT {node_columns}
  FROM (SELECT DISTINCT workflow_id, task_index FROM needed) AS needed
  JOIN horsies_workflow_tasks AS node USING (workflow_id, task_index);

-- name: load_ready
SELECT {node_columns} FROM horsies_workflow_tasks AS node
 WHERE node.workflow_id = ANY (%(ids)s::uuid[]) AND node.status = 'READY';

-- name: load_workflows
SELECT id::text, status, on_error = 'PAUSE', open_tasks, parent_workflow_id::text, parent_task_index
  FROM horsies_workflows WHERE id = ANY (%(ids)s::uuid[]);

-- name: write_changes
-- Write what a step has changed in nodes and workflows, and enqueue the tasks of the nodes that start. Return the seconds until
-- the first timer among them. If a live task has the id of a node's task, the node gets a new task id.
-- A node starts at the statement's time, not the transaction's: the transaction may have begun before it got the lock, and
-- another one that began later may have ended the last dependency in between. A node ends at the transaction's time, which
-- is its task's `terminal_at`, unless it starts and ends at once. A skipped node never ends: it has no `completed_at`.
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset(CAST(%(nodes)s AS json)) AS given (
        workflow_id uuid, task_index integer, status text, open_deps integer, completed_deps integer,
        failed_deps integer, open_sources integer, starts boolean, result text)
), node AS (
    UPDATE horsies_workflow_tasks AS node
       SET status = given.status,
           open_deps = coalesce(given.open_deps, node.open_deps),
           completed_deps = coalesce(given.completed_deps, node.completed_deps),
           failed_deps = coalesce(given.failed_deps, node.failed_deps),
           open_sources = coalesce(given.open_sources, node.open_sources),
           due_at = CASE WHEN node.seconds IS NULL THEN NULL
                         WHEN given.starts THEN statement_timestamp() + make_interval(secs => node.seconds)
                         WHEN given.status = 'RUNNING' THEN node.due_at END,
           started_at = CASE WHEN given.starts THEN statement_timestamp() ELSE node.started_at END,
           completed_at = CASE WHEN given.status NOT IN ('COMPLETED', 'FAILED') THEN NULL
                               WHEN given.starts THEN statement_timestamp() ELSE now() END,
           result = coalesce(given.result, node.result),
           task_id = CASE WHEN given.starts
                           AND (SELECT taken.id FROM horsies_tasks_live AS taken WHERE taken.id = node.task_id LIMIT 1)
                               IS NOT NULL
                          THEN horsies_new_id() ELSE node.task_id END
      FROM given
     WHERE node.workflow_id = given.workflow_id AND node.task_index = given.task_index
    RETURNING node.workflow_id, node.task_index, node.task_id, node.task_name, node.queue_name, node.is_async,
              node.priority, node.task_kwargs, node.good_until, node.timeout_ms, node.max_retries, node.task_options,
              node.rate_key, node.status, node.due_at, given.starts
), sent AS (
    INSERT INTO horsies_tasks_live (id, task_name, queue_name, is_async, priority, kwargs, good_until, timeout_ms,
                                    max_retries, task_options, rate_key, workflow_id, workflow_index)
    SELECT task_id, task_name, queue_name, is_async, priority, task_kwargs, good_until, timeout_ms,
           coalesce(max_retries, 0), task_options, coalesce(rate_key, ''), workflow_id, task_index
      FROM node WHERE starts AND status = 'ENQUEUED'
), flow AS (
    UPDATE horsies_workflows AS flow
       SET status = given.status, open_tasks = given.open_tasks,
           started_at = CASE WHEN given.status = 'PENDING' THEN NULL ELSE coalesce(flow.started_at, now()) END,
           deadline_at = CASE WHEN flow.status = 'PENDING' THEN now() + make_interval(secs => flow.deadline_seconds)
                              ELSE flow.deadline_at END
      FROM json_to_recordset(CAST(%(flows)s AS json)) AS given (id uuid, status text, open_tasks integer)
     WHERE flow.id = given.id
    RETURNING flow.id, flow.deadline_at, flow.awaited AND given.status = 'PAUSED' AS must_notify
), notified AS (
    SELECT count(pg_notify('workflow_done', id::text)) FROM flow WHERE must_notify
)
SELECT (SELECT extract(epoch FROM greatest(least(at, now() + interval '1 day'), now()) - now())::double precision
          FROM (SELECT least((SELECT min(due_at) FROM node WHERE starts), (SELECT min(deadline_at) FROM flow)) AS at) AS next
         WHERE at IS NOT NULL)
  FROM notified;

-- name: load_node_outcomes
-- Return what decides how these workflows end: the first node that failed, or, with a success policy, all nodes that failed
-- or completed.
SELECT flow.id::text, flow.success_policy,
       CASE WHEN success_policy IS NOT NULL THEN ARRAY(
           SELECT task_index FROM horsies_workflow_tasks AS node
            WHERE node.workflow_id = flow.id AND node.status = 'COMPLETED') END,
       ARRAY(SELECT task_index FROM horsies_workflow_tasks AS node
              WHERE node.workflow_id = flow.id AND node.status = 'FAILED'
              ORDER BY task_index LIMIT CASE WHEN success_policy IS NULL THEN 1 END)
  FROM horsies_workflows AS flow
 WHERE flow.id = ANY (%(ids)s::uuid[]);

-- name: end_workflows
-- End workflows with the value of their output node or the error of one of their nodes. A sub-workflow writes its result to
-- its node in the parent.
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset(CAST(%(verdicts)s AS json)) AS given (id uuid, status text, culprit integer, error text)
), flow AS (
    UPDATE horsies_workflows AS flow
       SET status = given.status, completed_at = now(), deadline_at = NULL,
           result = CASE WHEN given.status <> 'COMPLETED' THEN NULL
                         WHEN flow.gathers THEN
               (SELECT '{"ok":[' || coalesce(string_agg((node.result::json -> 'ok')::text, ',' ORDER BY task_index), '')
                       || ']}'
                  FROM horsies_workflow_results AS node WHERE node.workflow_id = flow.id)
                         WHEN flow.output_task_index IS NOT NULL THEN
               (SELECT node.result FROM horsies_workflow_results AS node
                 WHERE node.workflow_id = flow.id AND node.task_index = flow.output_task_index)
                         WHEN flow.parent_workflow_id IS NOT NULL THEN
               (SELECT json_build_object('ok', coalesce(json_object_agg(sink.node_id, ended.result::json), '{}'))::text
                  FROM horsies_workflow_tasks AS sink JOIN horsies_workflow_results AS ended USING (workflow_id, task_index)
                 WHERE sink.workflow_id = flow.id AND sink.dependents = '{}') END,
           error = CASE WHEN given.status <> 'COMPLETED' THEN coalesce(
               (SELECT (node.result::json -> 'err')::text FROM horsies_workflow_results AS node
                 WHERE node.workflow_id = flow.id AND node.task_index = given.culprit), given.error) END
      FROM given
     WHERE flow.id = given.id
    RETURNING flow.id, flow.parent_workflow_id, flow.parent_task_index, flow.status, flow.gathers, flow.result,
              flow.error, flow.awaited
), summary AS (
    SELECT flow.id, json_build_object(
               'status', flow.status, 'output', flow.result::json -> 'ok',
               'total_tasks', count(*), 'completed_tasks', count(*) FILTER (WHERE node.status = 'COMPLETED'),
               'failed_tasks', count(*) FILTER (WHERE node.status = 'FAILED'),
               'skipped_tasks', count(*) FILTER (WHERE node.status = 'SKIPPED'),
               'error_summary', flow.error::json ->> 'message') AS document
      FROM flow LEFT JOIN horsies_workflow_tasks AS node ON node.workflow_id = flow.id
     WHERE flow.parent_workflow_id IS NOT NULL
     GROUP BY flow.id, flow.status, flow.result, flow.error
), parent AS (
    UPDATE horsies_workflow_tasks AS node
       SET sub_workflow_summary = CASE WHEN flow.gathers THEN NULL ELSE summary.document END,
           result = CASE WHEN flow.status = 'COMPLETED' THEN coalesce(flow.result, '{"ok":null}')
                         WHEN flow.gathers THEN '{"err":' || flow.error || '}'
                         ELSE json_build_object('err', json_build_object(
                             'error_code', json_build_object('__builtin_task_code__', 'SUBWORKFLOW_FAILED'),
                             'message', 'the workflow ' || node.node_id || ' is ' || flow.status
                                        || coalesce(': ' || (flow.error::json ->> 'message'), ''),
                             'data', NULL, 'exception', NULL, 'sub_workflow_id', flow.id,
                             'sub_workflow_summary', summary.document))::text END
      FROM flow JOIN summary USING (id)
     WHERE node.workflow_id = flow.parent_workflow_id AND node.task_index = flow.parent_task_index
)
SELECT CASE WHEN awaited THEN pg_notify('workflow_done', id::text) END FROM flow;

-- fragment: workflow_state
flow.id, flow.status, flow.result, flow.error,
(SELECT node_id FROM horsies_workflow_tasks WHERE workflow_id = flow.id AND task_index = flow.output_task_index) AS output

-- name: watch
-- Return the state of these workflows, and mark those that have not ended, so that their end is notified. A row that is
-- locked is skipped; the caller asks for it again.
WITH free AS MATERIALIZED (
    SELECT id FROM horsies_workflows
     WHERE id = ANY (%(ids)s::uuid[]) AND NOT awaited AND status IN ('PENDING', 'RUNNING', 'PAUSED')
       AND set_config('synchronous_commit', 'off', true) IS NOT NULL
       FOR UPDATE SKIP LOCKED
), marked AS (
    UPDATE horsies_workflows SET awaited = true WHERE id = ANY (ARRAY (SELECT id FROM free)) RETURNING id
)
SELECT {workflow_state}, flow.awaited OR marked.id IS NOT NULL AS watched
  FROM horsies_workflows AS flow LEFT JOIN marked ON marked.id = flow.id
 WHERE flow.id = ANY (%(ids)s::uuid[]);

-- name: look
SELECT {workflow_state}, false AS watched FROM horsies_workflows AS flow WHERE id = %(id)s;

-- name: results
SELECT ended.node_id, ended.status, ended.result, node.dependents = '{}' AS is_last
  FROM horsies_workflow_results AS ended JOIN horsies_workflow_tasks AS node USING (workflow_id, task_index)
 WHERE workflow_id = %(id)s AND (%(node_id)s::text IS NULL OR ended.node_id = %(node_id)s)
 ORDER BY task_index;

-- name: nodes
SELECT node.task_index, node.node_id, node.kind, node.task_name,
       {node_status}, node.task_id, node.sub_workflow_id, node.queue_name, node.priority,
       ARRAY (SELECT unnest(node.dependencies)) AS dependencies,
       CASE WHEN node.kind = 'task' THEN task.started_at ELSE node.started_at END AS started_at,
       node.completed_at, node.due_at, ended.result,
       node.sub_workflow_summary AS summary
  FROM horsies_workflow_tasks AS node LEFT JOIN horsies_workflow_results AS ended USING (workflow_id, task_index)
       {task_of_node}
 WHERE workflow_id = %(id)s
 ORDER BY task_index;

-- name: load_inputs
-- Return the results of other nodes that these tasks take as arguments or context. They are assembled here, so that no worker
-- has to decode them. A source that has not ended is left out; a skipped source is an error. A task gets only the inputs of
-- its own node.
WITH node AS MATERIALIZED (
    SELECT node.workflow_id, node.task_index, node.task_id, node.args_from, node.workflow_ctx_from, node.join_type,
           flow.root_workflow_id, flow.depth
      FROM json_to_recordset(CAST(%(tasks)s AS json)) AS given (id uuid, workflow_id uuid, task_index integer)
      JOIN horsies_workflow_tasks AS node
        ON node.workflow_id = given.workflow_id AND node.task_index = given.task_index AND node.task_id = given.id
      JOIN horsies_workflows AS flow ON flow.id = node.workflow_id
)
SELECT node.task_id::text, json_build_object(
           'workflow_id', node.workflow_id, 'task_index', node.task_index,
           'root_workflow_id', node.root_workflow_id, 'depth', node.depth, 'optional', node.join_type <> 'all',
           'args', (SELECT json_object_agg(arg.name, horsies_node_result(source.status, source.result, source.task_index))
                      FROM json_each_text(node.args_from) AS arg (name, task_index)
                      JOIN horsies_workflow_results AS source
                        ON source.workflow_id = node.workflow_id AND source.task_index = arg.task_index::integer
                     WHERE source.status IN ('COMPLETED', 'FAILED', 'SKIPPED')),
           'context', CASE WHEN node.workflow_ctx_from IS NOT NULL THEN
               (SELECT coalesce(json_object_agg(source.node_id, horsies_node_result(source.status, source.result,
                                                                                    source.task_index)), '{}')
                  FROM unnest(node.workflow_ctx_from) AS needed (task_index)
                  JOIN horsies_workflow_results AS source
                    ON source.workflow_id = node.workflow_id AND source.task_index = needed.task_index
                 WHERE source.status IN ('COMPLETED', 'FAILED', 'SKIPPED')) END,
           'summaries', (SELECT json_object_agg(other.node_id, other.sub_workflow_summary)
                           FROM horsies_workflow_tasks AS other
                          WHERE other.workflow_id = node.workflow_id AND other.task_index = ANY (node.workflow_ctx_from)
                            AND other.sub_workflow_summary IS NOT NULL))::text
  FROM node;

-- name: tree
WITH RECURSIVE tree AS (
    SELECT id, status FROM horsies_workflows WHERE id = %(id)s
    UNION  -- not UNION ALL: a workflow that is its own parent must not loop for ever
    SELECT flow.id, flow.status FROM tree JOIN horsies_workflows AS flow ON flow.parent_workflow_id = tree.id
)
SELECT id::text FROM tree WHERE status = ANY (%(states)s::text[]);

-- fragment: is_enqueued
task.live AND node.workflow_id = ANY (%(ids)s::uuid[]) AND node.status = 'ENQUEUED' AND task.id = node.task_id
AND task.workflow_id = node.workflow_id AND task.workflow_index = node.task_index

-- name: pause
-- Pause workflows. Their tasks that were enqueued and not started become due in the year 9999, or when the workflow resumes.
WITH flow AS (
    UPDATE horsies_workflows SET status = 'PAUSED' WHERE id = ANY (%(ids)s::uuid[]) RETURNING id, awaited
), held AS (
    UPDATE horsies_tasks AS task
       SET status = 'PENDING', claim_seq = task.claim_seq + 1, claimed_by_worker_id = NULL, claimed_at = NULL,
           enqueued_at = '9999-01-01'
      FROM horsies_workflow_tasks AS node
     WHERE {is_enqueued} AND task.status IN ('PENDING', 'CLAIMED') AND task.parked_at IS NULL
)
SELECT count(CASE WHEN awaited THEN pg_notify('workflow_done', id::text) END) FROM flow;

-- name: record_errors
-- Record why workflows are paused: the error of the first node that failed.
UPDATE horsies_workflows AS flow
   SET error = (SELECT (node.result::json -> 'err')::text FROM horsies_workflow_results AS node
                 WHERE node.workflow_id = flow.id AND node.status = 'FAILED'
                 ORDER BY node.task_index LIMIT 1)
 WHERE flow.id = ANY (%(ids)s::uuid[]) AND flow.status = 'PAUSED';

-- name: resume_tasks
-- Make the tasks of paused workflows due again: now, or at the time of their retry. The reason of the pause is over.
WITH flow AS (
    UPDATE horsies_workflows SET error = NULL WHERE id = ANY (%(ids)s::uuid[]) AND error IS NOT NULL
), due AS (
    UPDATE horsies_tasks AS task SET enqueued_at = greatest(now(), task.next_retry_at)
      FROM horsies_workflow_tasks AS node
     WHERE {is_enqueued} AND task.status = 'PENDING' AND task.parked_at IS NULL
    RETURNING task.queue_name
)
SELECT count(pg_notify(horsies_queue_channel(queue_name), '')) FROM (SELECT DISTINCT queue_name FROM due) AS touched;

-- name: wake
-- Wake the workers of every queue in which a task of this workflow's tree waits, after an operator has acted on it. This is
-- unconditional, not only for workers that are known to sleep: such actions are rare, and a lost wake-up would cost a poll.
WITH RECURSIVE tree AS (
    SELECT root_workflow_id AS id FROM horsies_workflows WHERE id = %(id)s
    UNION
    SELECT flow.id FROM tree JOIN horsies_workflows AS flow ON flow.parent_workflow_id = tree.id
)
SELECT count(pg_notify(horsies_queue_channel(queue_name), ''))
  FROM (SELECT DISTINCT node.queue_name FROM tree JOIN horsies_workflow_tasks AS node ON node.workflow_id = tree.id
         WHERE node.status = 'ENQUEUED' AND node.queue_name IS NOT NULL) AS touched;

-- name: stop
-- End workflows early. Tasks that have not started are cancelled; running tasks may end and are recorded. Return the nodes of
-- parent workflows that end with them.
WITH cancelled AS (
    UPDATE horsies_tasks AS task
       SET live = false, status = 'CANCELLED', error_code = 'TASK_CANCELLED', result = %(result)s, terminal_at = now()
      FROM horsies_workflow_tasks AS node
     WHERE {is_enqueued} AND task.status IN ('PENDING', 'CLAIMED')
    RETURNING task.id, task.awaited
), skipped AS (
    UPDATE horsies_workflow_tasks AS node
       SET status = 'SKIPPED', due_at = NULL, result = NULL
     WHERE node.workflow_id = ANY (%(ids)s::uuid[])
       AND (node.status IN ('PENDING', 'READY', 'RUNNING')
            OR node.status = 'ENQUEUED' AND node.task_id IN (SELECT id FROM cancelled))
    RETURNING node.workflow_id
), flow AS (
    UPDATE horsies_workflows AS flow
       SET status = %(status)s, completed_at = now(), deadline_at = NULL,
           error = %(error)s, open_tasks = flow.open_tasks - (SELECT count(*) FROM skipped WHERE workflow_id = flow.id)
     WHERE flow.id = ANY (%(ids)s::uuid[])
    RETURNING flow.id, flow.parent_workflow_id, flow.parent_task_index, flow.awaited
), notified AS (
    SELECT count(CASE WHEN awaited THEN pg_notify('task_done', id::text) END) FROM cancelled
), parent AS (
    UPDATE horsies_workflow_tasks AS node
       SET result = json_build_object('err', json_build_object(
               'error_code', json_build_object('__builtin_task_code__', 'SUBWORKFLOW_FAILED'),
               'message', 'the workflow ' || node.node_id || ' is ' || %(status)s, 'data', NULL, 'exception', NULL,
               'sub_workflow_id', flow.id, 'sub_workflow_summary', NULL))::text
      FROM flow
     WHERE node.workflow_id = flow.parent_workflow_id AND node.task_index = flow.parent_task_index
       AND node.workflow_id <> ALL (%(ids)s::uuid[]) AND node.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')
)
SELECT parent_workflow_id::text, parent_task_index, CASE WHEN awaited THEN pg_notify('workflow_done', id::text) END
  FROM flow CROSS JOIN notified
 WHERE parent_workflow_id IS NULL OR parent_workflow_id <> ALL (%(ids)s::uuid[]);

-- name: signal
-- Give a value to the nodes that wait for this signal, now or later. A node that has a value keeps it.
UPDATE horsies_workflow_tasks AS node
   SET result = %(result)s
  FROM horsies_workflows AS flow
 WHERE flow.id = %(id)s AND flow.status IN ('PENDING', 'RUNNING', 'PAUSED') AND node.workflow_id = flow.id
   AND node.kind = 'signal' AND node.task_name = %(name)s AND node.result IS NULL
   AND node.status IN ('PENDING', 'READY', 'RUNNING')
RETURNING node.workflow_id::text, node.task_index, node.status;

-- name: due_timers
SELECT workflow_id::text, task_index, kind FROM horsies_workflow_tasks
 WHERE due_at <= now() AND (%(ids)s::uuid[] IS NULL OR workflow_id = ANY (%(ids)s::uuid[]))
 ORDER BY due_at LIMIT 500;

-- name: overdue
SELECT id::text FROM horsies_workflows
 WHERE deadline_at <= now() AND (%(ids)s::uuid[] IS NULL OR id = ANY (%(ids)s::uuid[]))
 ORDER BY deadline_at LIMIT 100;

-- name: clear_timers
UPDATE horsies_workflow_tasks AS node SET due_at = NULL
  FROM json_to_recordset(CAST(%(nodes)s AS json)) AS given (workflow_id uuid, task_index integer)
 WHERE node.workflow_id = given.workflow_id AND node.task_index = given.task_index AND node.due_at <= now();

-- name: clear_deadlines
UPDATE horsies_workflows SET deadline_at = NULL WHERE deadline_at <= now() AND id = ANY (%(ids)s::uuid[]);

-- name: next_timer
-- Return the seconds until the next sleep, signal timeout or deadline is due, or a parked task, a day at most. A timestamp can be infinite;
-- PostgreSQL before version 17 cannot subtract from that.
SELECT extract(epoch FROM greatest(least(at, now() + interval '1 day'), now()) - now())::double precision
  FROM (SELECT least((SELECT min(due_at) FROM horsies_workflow_tasks WHERE due_at IS NOT NULL),
                     (SELECT min(deadline_at) FROM horsies_workflows WHERE deadline_at IS NOT NULL),
                     (SELECT min(enqueued_at) FROM horsies_tasks_live WHERE parked_at IS NOT NULL AND follows IS NULL)) AS at) AS next
 WHERE at IS NOT NULL;

-- name: reset
-- Reset the nodes of these workflows that failed or were skipped, as if they had never started, and reopen the workflows.
WITH again AS (
    UPDATE horsies_workflow_tasks AS node
       SET status = 'PENDING', completed_at = NULL, started_at = NULL, due_at = NULL, sub_workflow_summary = NULL,
           result = CASE WHEN node.kind = 'signal' AND (node.result::json -> 'ok') IS NOT NULL THEN node.result END,
           task_id = CASE WHEN node.task_id IS NULL THEN NULL ELSE horsies_new_id() END,
           sub_workflow_id = CASE WHEN node.kind = 'map' OR node.task_id IS NOT NULL THEN NULL
                                  ELSE node.sub_workflow_id END
     WHERE node.workflow_id = ANY (%(ids)s::uuid[]) AND node.status IN ('FAILED', 'SKIPPED')
    RETURNING node.workflow_id, node.task_index
), flow AS (
    UPDATE horsies_workflows AS flow
       SET status = CASE WHEN flow.id = %(id)s THEN 'RUNNING' ELSE 'PENDING' END,
           completed_at = NULL, result = NULL, error = NULL,
           deadline_at = CASE WHEN flow.id = %(id)s THEN now() + make_interval(secs => flow.deadline_seconds) END,
           open_tasks = flow.open_tasks + (SELECT count(*) FROM again WHERE workflow_id = flow.id)
     WHERE flow.id = ANY (%(ids)s::uuid[])
)
SELECT count(*) FROM again;

-- name: recount
-- Count again how many dependencies of each unfinished node have ended, and mark the nodes that are ready.
UPDATE horsies_workflow_tasks AS node
   SET open_deps = counted.open, completed_deps = counted.completed, failed_deps = counted.failed,
       open_sources = CASE WHEN node.join_type = 'all' THEN 0 ELSE counted.sources END,
       status = CASE WHEN node.status = 'PENDING'
                      AND CASE WHEN node.join_type = 'all' THEN counted.open = 0
                               ELSE counted.completed >= node.min_success AND counted.sources = 0 END
                     THEN 'READY' ELSE node.status END
  FROM (SELECT waiting.workflow_id, waiting.task_index,
               count(dep.task_index) FILTER (WHERE dep.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')) AS open,
               count(*) FILTER (WHERE dep.status = 'COMPLETED') AS completed,
               count(*) FILTER (WHERE dep.status IN ('FAILED', 'SKIPPED')) AS failed,
               count(*) FILTER (WHERE dep.task_index = ANY (waiting.workflow_ctx_from)
                                  AND dep.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')) AS sources
          FROM horsies_workflow_tasks AS waiting
          LEFT JOIN horsies_workflow_tasks AS dep
            ON dep.workflow_id = waiting.workflow_id AND dep.task_index = ANY (waiting.dependencies)
         WHERE waiting.workflow_id = ANY (%(ids)s::uuid[]) AND waiting.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')
         GROUP BY waiting.workflow_id, waiting.task_index) AS counted
 WHERE node.workflow_id = counted.workflow_id AND node.task_index = counted.task_index;

-- name: expand_maps
-- Create a child workflow for each of these map nodes, with one task per item. Return the number of items; NULL if the source
-- is not a list.
WITH mapped AS MATERIALIZED (
    SELECT node.*, horsies_new_id() AS child_id, flow.root_workflow_id, flow.depth, arg.name AS param,
           source.result::json -> 'ok' AS items
      FROM json_to_recordset(CAST(%(nodes)s AS json)) AS given (workflow_id uuid, task_index integer)
      JOIN horsies_workflow_tasks AS node USING (workflow_id, task_index)
      JOIN horsies_workflows AS flow ON flow.id = node.workflow_id
     CROSS JOIN LATERAL json_each_text(node.args_from) AS arg (name, over_index)
      JOIN horsies_workflow_results AS source
        ON source.workflow_id = node.workflow_id AND source.task_index = arg.over_index::integer
), listed AS MATERIALIZED (
    SELECT mapped.*, json_array_length(items) AS count FROM mapped WHERE json_typeof(items) = 'array'
), item AS MATERIALIZED (
    SELECT listed.*, horsies_new_id(place::integer) AS item_id, (place - 1)::integer AS place,
           left(coalesce(task_kwargs, '{}'), -1) || CASE WHEN coalesce(task_kwargs, '{}') = '{}' THEN '' ELSE ',' END
               || to_json(param)::text || ':' || value::text || '}' AS kwargs
      FROM listed CROSS JOIN LATERAL json_array_elements(items) WITH ORDINALITY AS element (value, place)
), flow AS (
    INSERT INTO horsies_workflows (id, root_workflow_id, parent_workflow_id, parent_task_index, depth, name, status,
                                   on_error, definition_key, open_tasks, gathers, started_at)
    SELECT child_id, root_workflow_id, workflow_id, task_index, depth + 1, task_name, 'RUNNING', 'FAIL', '', count,
           true, now()
      FROM listed
), node AS (
    INSERT INTO horsies_workflow_tasks (
           workflow_id, task_index, task_id, timeout_ms, priority, max_retries, is_async, started_at, open_deps, status, kind,
           join_type, node_id, task_name, queue_name, rate_key, task_kwargs, task_options)
    SELECT child_id, place, item_id, timeout_ms, priority, max_retries, is_async, now(), 0, 'ENQUEUED', 'task', 'all',
           node_id || ':' || place, task_name, queue_name, rate_key, kwargs, task_options
      FROM item
), sent AS (
    INSERT INTO horsies_tasks_live (id, task_name, queue_name, is_async, priority, kwargs, timeout_ms, max_retries,
                                    task_options, rate_key, workflow_id, workflow_index)
    SELECT item_id, task_name, queue_name, is_async, priority, kwargs, timeout_ms, max_retries, task_options,
           coalesce(rate_key, ''), child_id, place
      FROM item
), named AS (
    UPDATE horsies_workflow_tasks AS node SET sub_workflow_id = listed.child_id
      FROM listed
     WHERE node.workflow_id = listed.workflow_id AND node.task_index = listed.task_index
)
SELECT mapped.workflow_id::text, mapped.task_index, mapped.child_id::text, listed.count AS items
  FROM mapped LEFT JOIN listed USING (workflow_id, task_index);

-- name: built_workflows
-- Return the rows that build tasks have just returned for these nodes.
SELECT node.workflow_id::text, node.task_index, task.result
  FROM json_to_recordset(CAST(%(nodes)s AS json)) AS given (workflow_id uuid, task_index integer)
  JOIN horsies_workflow_tasks AS node USING (workflow_id, task_index)
  JOIN horsies_tasks AS task ON task.id = node.task_id AND NOT task.live AND task.terminal_at = now()
   AND task.workflow_id = node.workflow_id AND task.workflow_index = node.task_index;

-- name: attach_built
SELECT horsies_store_sub_workflow(%(id)s::uuid, %(flows)s::json, %(nodes)s::json, %(workflow_id)s::uuid, %(task_index)s::integer);

-- name: late_tasks
-- Return tasks of workflows that expired before they were started: pending ones, or those that this worker has claimed.
SELECT task.id::text, task.workflow_id::text, task.claim_seq, task.workflow_index FROM horsies_tasks_live AS task
 WHERE task.good_until <= now() AND task.workflow_id IS NOT NULL
   AND (task.status = 'PENDING' OR (task.status = 'CLAIMED' AND task.claimed_by_worker_id = %(worker_id)s))
 ORDER BY task.good_until LIMIT 500;

-- name: expire
-- Expire these tasks. The index is NULL for a task that names a node which belongs to another task.
WITH ended AS (
    UPDATE horsies_tasks AS task
       SET live = false, status = 'EXPIRED', error_code = 'TASK_EXPIRED', result = %(result)s, terminal_at = now()
     WHERE task.live AND task.id = ANY (%(ids)s::uuid[]) AND task.good_until <= now()
       AND (task.status = 'PENDING' OR (task.status = 'CLAIMED' AND task.claimed_by_worker_id = %(worker_id)s))
    RETURNING task.id, task.task_name, task.queue_name, task.workflow_id, task.workflow_index, task.rate_key, task.awaited
)
SELECT CASE WHEN awaited THEN pg_notify('task_done', ended.id::text) END, node.task_index, ended.id::text, ended.task_name,
       ended.queue_name, ended.workflow_id::text, ended.rate_key
  FROM ended
  LEFT JOIN horsies_workflow_tasks AS node
    ON node.workflow_id = ended.workflow_id AND node.task_index = ended.workflow_index AND node.task_id = ended.id;

-- name: list
SELECT id::text, left(name, 300) AS name, status, sent_at, started_at, completed_at, open_tasks,
       (SELECT count(*) FROM horsies_workflow_tasks AS node WHERE node.workflow_id = flow.id) AS total_tasks,
       left(error, 20000) AS error, parent_workflow_id::text, left(definition_key, 300) AS definition_key
  FROM horsies_workflows AS flow
 WHERE (%(status)s::text IS NULL OR status = %(status)s) AND (%(name)s::text IS NULL OR name = %(name)s)
   AND (%(all)s OR parent_workflow_id IS NULL)
 ORDER BY sent_at DESC, id DESC LIMIT %(limit)s;

-- name: show
SELECT id::text, name, status, sent_at, started_at, completed_at, open_tasks, deadline_at, error, parent_workflow_id::text,
       definition_key, on_error
  FROM horsies_workflows WHERE id = %(id)s;
