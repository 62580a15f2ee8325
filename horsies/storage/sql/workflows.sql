-- name: start
-- Store a workflow with all that belongs to it, and send the tasks that can begin. An id that is taken stores nothing.
WITH asked AS MATERIALIZED (
    SELECT * FROM json_to_recordset(CAST(%(flows)s AS json)) AS asked (
        id uuid, root_workflow_id uuid, parent_workflow_id uuid, parent_task_index integer, depth integer, name text,
        status text, on_error text, definition_key text, output_task_index integer, success_policy text,
        deadline_seconds double precision, open_tasks integer)
), first AS (
    INSERT INTO horsies_workflows (id, root_workflow_id, parent_workflow_id, parent_task_index, depth, name, status,
                                   on_error, definition_key, output_task_index, success_policy, deadline_seconds,
                                   deadline_at, open_tasks, started_at)
    SELECT id, root_workflow_id, parent_workflow_id, parent_task_index, depth, name, status, on_error, definition_key,
           output_task_index, success_policy, deadline_seconds,
           CASE WHEN status = 'RUNNING' THEN now() + make_interval(secs => deadline_seconds) END, open_tasks,
           CASE WHEN status = 'RUNNING' THEN now() END
      FROM asked WHERE id = %(id)s
    ON CONFLICT (id) DO NOTHING
    RETURNING id
), below AS (
    INSERT INTO horsies_workflows (id, root_workflow_id, parent_workflow_id, parent_task_index, depth, name, status,
                                   on_error, definition_key, output_task_index, success_policy, deadline_seconds,
                                   deadline_at, open_tasks, started_at)
    SELECT id, root_workflow_id, parent_workflow_id, parent_task_index, depth, name, status, on_error, definition_key,
           output_task_index, success_policy, deadline_seconds,
           CASE WHEN status = 'RUNNING' THEN now() + make_interval(secs => deadline_seconds) END, open_tasks,
           CASE WHEN status = 'RUNNING' THEN now() END
      FROM asked WHERE id <> %(id)s AND EXISTS (SELECT FROM first)
), node AS (
    INSERT INTO horsies_workflow_tasks (workflow_id, task_index, task_id, sub_workflow_id, good_until, seconds,
                                        min_success, timeout_ms, priority, max_retries, is_async, allow_failed_deps,
                                        due_at, started_at, open_deps, open_sources, status, kind, join_type, node_id,
                                        task_name, queue_name, rate_key, task_kwargs, task_options, sub_definition_key,
                                        args_from, dependencies, dependents, workflow_ctx_from)
    SELECT workflow_id, task_index, task_id, sub_workflow_id, good_until, seconds, min_success, timeout_ms, priority,
           coalesce(max_retries, 0), coalesce(is_async, false), coalesce(allow_failed_deps, false),
           CASE WHEN status = 'RUNNING' THEN now() + make_interval(secs => seconds) END,
           CASE WHEN status IN ('ENQUEUED', 'RUNNING') THEN now() END,
           coalesce(open_deps, 0), coalesce(open_sources, 0), status, kind, join_type, node_id, task_name, queue_name,
           rate_key, task_kwargs, task_options, sub_definition_key, args_from, coalesce(dependencies, '{}'),
           coalesce(dependents, '{}'), workflow_ctx_from
      FROM json_to_recordset(CAST(%(nodes)s AS json)) AS asked (
           workflow_id uuid, task_index integer, task_id uuid, sub_workflow_id uuid, good_until timestamptz,
           seconds double precision, min_success integer, timeout_ms integer, priority smallint, max_retries smallint,
           is_async boolean, allow_failed_deps boolean, open_deps integer, open_sources integer, status text, kind text,
           join_type text, node_id text, task_name text, queue_name text, rate_key text, task_kwargs text,
           task_options text, sub_definition_key text, args_from json, dependencies integer[], dependents integer[],
           workflow_ctx_from integer[])
     WHERE EXISTS (SELECT FROM first)
    RETURNING workflow_id, task_index, task_id, task_name, queue_name, is_async, priority, task_kwargs, good_until,
              timeout_ms, max_retries, task_options, rate_key, status, due_at
), sent AS (
    INSERT INTO horsies_tasks_live (id, task_name, queue_name, is_async, priority, kwargs, good_until, timeout_ms,
                                    max_retries, task_options, rate_key, workflow_id, workflow_index)
    SELECT task_id, task_name, queue_name, is_async, priority, task_kwargs, good_until, timeout_ms, max_retries,
           task_options, coalesce(rate_key, ''), workflow_id, task_index
      FROM node WHERE status = 'ENQUEUED'
), woken AS (
    -- Somebody must know when to wake up for what is timed.
    SELECT count(pg_notify(horsies_queue_channel(queue_name), ''))
      FROM (SELECT DISTINCT queues[1] AS queue_name FROM horsies_workers
             WHERE (waiting OR waiting_async) AND lease_expires_at > now()
               AND (EXISTS (SELECT FROM node WHERE due_at IS NOT NULL)
                    OR EXISTS (SELECT FROM asked WHERE deadline_seconds IS NOT NULL))) AS worker
)
SELECT count(*) FROM first CROSS JOIN woken;

-- name: living
-- Which of these have not ended; one that is paused has not.
SELECT id FROM horsies_workflows
 WHERE id = ANY (%(ids)s::uuid[]) AND status IN ('PENDING', 'RUNNING', 'PAUSED');

-- name: lock
-- Everything about these workflows' trees takes turns from here to the end of the transaction. A statement of its own,
-- so that the next one sees what was written by those before us.
SELECT count(*)
  FROM (SELECT id FROM horsies_workflows
         WHERE id IN (SELECT root_workflow_id FROM horsies_workflows WHERE id = ANY (%(ids)s::uuid[]))
         ORDER BY id
           FOR NO KEY UPDATE) AS locked;

-- name: stopped
-- Which of these workflows are over: what runs in them is not repeated.
SELECT id::text FROM horsies_workflows
 WHERE id = ANY (%(ids)s::uuid[]) AND status NOT IN ('RUNNING', 'PAUSED');

-- name: complete
-- End tasks that returned, as `exchange` does; the answer has those that were ours.
WITH said AS MATERIALIZED (
    SELECT CAST(%(completed)s AS jsonb) AS of
), ended AS (
    UPDATE horsies_tasks AS task
       SET live = false, status = 'COMPLETED', result = (SELECT of FROM said) ->> (task.id || '/' || task.claim_seq),
           completed_at = now(), terminal_at = now()
     WHERE task.live AND task.id = ANY (ARRAY (SELECT CAST(left(call, 36) AS uuid) FROM said, jsonb_object_keys(of) AS call))
       AND (SELECT of FROM said) ? (task.id || '/' || task.claim_seq) AND task.status = 'RUNNING'
       AND task.cancel_asked_at IS NULL
    RETURNING task.id, task.awaited
)
SELECT id::text, CASE WHEN awaited THEN pg_notify('task_done', id::text) END FROM ended;

-- name: complete_and_load
-- The same, and the nodes of those that were ours, marked as such, with all that wait for them.
WITH said AS MATERIALIZED (
    SELECT CAST(%(completed)s AS jsonb) AS of
), ended AS (
    UPDATE horsies_tasks AS task
       SET live = false, status = 'COMPLETED', result = (SELECT of FROM said) ->> (task.id || '/' || task.claim_seq),
           completed_at = now(), terminal_at = now()
     WHERE task.live AND task.id = ANY (ARRAY (SELECT CAST(left(call, 36) AS uuid) FROM said, jsonb_object_keys(of) AS call))
       AND (SELECT of FROM said) ? (task.id || '/' || task.claim_seq) AND task.status = 'RUNNING'
       AND task.cancel_asked_at IS NULL
    RETURNING task.id, task.awaited, task.workflow_id, task.workflow_index
), told AS MATERIALIZED (
    SELECT count(CASE WHEN awaited THEN pg_notify('task_done', id::text) END) FROM ended
), node AS MATERIALIZED (
    SELECT node.* FROM ended
      JOIN horsies_workflow_tasks AS node ON node.workflow_id = ended.workflow_id AND node.task_index = ended.workflow_index
), wanted AS MATERIALIZED (
    SELECT DISTINCT node.workflow_id, dependent AS task_index
      FROM node CROSS JOIN LATERAL unnest(node.dependents) AS dependent
)
SELECT node.workflow_id::text, node.task_index, node.kind, node.status, node.join_type, node.min_success,
       node.allow_failed_deps, node.open_deps, node.completed_deps, node.failed_deps, node.open_sources, node.dependents,
       CASE WHEN node.join_type = 'all' THEN '{}' ELSE coalesce(node.workflow_ctx_from, '{}') END,
       node.sub_workflow_id::text, node.result IS NOT NULL,
       node.args_from IS NOT NULL OR node.workflow_ctx_from IS NOT NULL, true
  FROM node CROSS JOIN told
UNION ALL
SELECT node.workflow_id::text, node.task_index, node.kind, node.status, node.join_type, node.min_success,
       node.allow_failed_deps, node.open_deps, node.completed_deps, node.failed_deps, node.open_sources, node.dependents,
       CASE WHEN node.join_type = 'all' THEN '{}' ELSE coalesce(node.workflow_ctx_from, '{}') END,
       node.sub_workflow_id::text, node.result IS NOT NULL,
       node.args_from IS NOT NULL OR node.workflow_ctx_from IS NOT NULL, false
  FROM wanted JOIN horsies_workflow_tasks AS node USING (workflow_id, task_index)
 WHERE NOT EXISTS (SELECT FROM ended WHERE ended.workflow_id = node.workflow_id AND ended.workflow_index = node.task_index);

-- name: load
-- The nodes that ended, and those that wait for them; of those that ended `deep`, all that wait for those in turn.
WITH RECURSIVE wanted (workflow_id, task_index, deep, goes_on) AS (
    SELECT said.*, true FROM json_to_recordset(CAST(%(ended)s AS json))
                          AS said (workflow_id uuid, task_index integer, deep boolean)
    UNION
    SELECT wanted.workflow_id, dependent, deep, deep
      FROM wanted JOIN horsies_workflow_tasks AS node USING (workflow_id, task_index)
     CROSS JOIN LATERAL unnest(node.dependents) AS dependent
     WHERE goes_on
)
SELECT node.workflow_id::text, node.task_index, node.kind, node.status, node.join_type, node.min_success,
       node.allow_failed_deps, node.open_deps, node.completed_deps, node.failed_deps, node.open_sources, node.dependents,
       CASE WHEN node.join_type = 'all' THEN '{}' ELSE coalesce(node.workflow_ctx_from, '{}') END,
       node.sub_workflow_id::text, node.result IS NOT NULL,
       node.args_from IS NOT NULL OR node.workflow_ctx_from IS NOT NULL
  FROM (SELECT DISTINCT workflow_id, task_index FROM wanted) AS wanted
  JOIN horsies_workflow_tasks AS node USING (workflow_id, task_index);

-- name: load_ready
-- The nodes of these workflows that are ready.
SELECT node.workflow_id::text, node.task_index, node.kind, node.status, node.join_type, node.min_success,
       node.allow_failed_deps, node.open_deps, node.completed_deps, node.failed_deps, node.open_sources, node.dependents,
       CASE WHEN node.join_type = 'all' THEN '{}' ELSE coalesce(node.workflow_ctx_from, '{}') END,
       node.sub_workflow_id::text, node.result IS NOT NULL,
       node.args_from IS NOT NULL OR node.workflow_ctx_from IS NOT NULL
  FROM horsies_workflow_tasks AS node
 WHERE node.workflow_id = ANY (%(ids)s::uuid[]) AND node.status = 'READY';

-- name: flows
SELECT id::text, status, on_error = 'PAUSE', open_tasks, parent_workflow_id::text, parent_task_index
  FROM horsies_workflows WHERE id = ANY (%(ids)s::uuid[]);

-- name: write
-- What a step comes to: nodes and workflows as they are now, and the tasks of those that begin. Tells in how many seconds
-- the first timer among them ends.
WITH said AS MATERIALIZED (
    SELECT * FROM json_to_recordset(CAST(%(nodes)s AS json)) AS said (
        workflow_id uuid, task_index integer, status text, open_deps integer, completed_deps integer,
        failed_deps integer, open_sources integer, starts boolean, result text)
), node AS (
    UPDATE horsies_workflow_tasks AS node
       SET status = said.status,
           open_deps = coalesce(said.open_deps, node.open_deps),
           completed_deps = coalesce(said.completed_deps, node.completed_deps),
           failed_deps = coalesce(said.failed_deps, node.failed_deps),
           open_sources = coalesce(said.open_sources, node.open_sources),
           due_at = CASE WHEN node.seconds IS NULL THEN NULL
                         WHEN said.starts THEN now() + make_interval(secs => node.seconds)
                         WHEN said.status = 'RUNNING' THEN node.due_at END,
           started_at = CASE WHEN said.starts THEN now() ELSE node.started_at END,
           completed_at = CASE WHEN said.status IN ('COMPLETED', 'FAILED', 'SKIPPED') THEN now() END,
           result = coalesce(said.result, node.result)
      FROM said
     WHERE node.workflow_id = said.workflow_id AND node.task_index = said.task_index
    RETURNING node.workflow_id, node.task_index, node.task_id, node.task_name, node.queue_name, node.is_async,
              node.priority, node.task_kwargs, node.good_until, node.timeout_ms, node.max_retries, node.task_options,
              node.rate_key, node.status, node.due_at, said.starts
), sent AS (
    INSERT INTO horsies_tasks_live (id, task_name, queue_name, is_async, priority, kwargs, good_until, timeout_ms,
                                    max_retries, task_options, rate_key, workflow_id, workflow_index)
    SELECT task_id, task_name, queue_name, is_async, priority, task_kwargs, good_until, timeout_ms,
           coalesce(max_retries, 0), task_options, coalesce(rate_key, ''), workflow_id, task_index
      FROM node WHERE starts AND status = 'ENQUEUED'
), flow AS (
    UPDATE horsies_workflows AS flow
       SET status = said.status, open_tasks = said.open_tasks,
           started_at = CASE WHEN said.status = 'PENDING' THEN NULL ELSE coalesce(flow.started_at, now()) END,
           deadline_at = CASE WHEN flow.status = 'PENDING' THEN now() + make_interval(secs => flow.deadline_seconds)
                              ELSE flow.deadline_at END
      FROM json_to_recordset(CAST(%(flows)s AS json)) AS said (id uuid, status text, open_tasks integer)
     WHERE flow.id = said.id
    RETURNING flow.id, flow.deadline_at, flow.awaited AND said.status = 'PAUSED' AS told
), told AS (
    SELECT count(pg_notify('workflow_done', id::text)) FROM flow WHERE told
)
SELECT extract(epoch FROM least((SELECT min(due_at) FROM node WHERE starts), (SELECT min(deadline_at) FROM flow))
                          - now())::double precision
  FROM told;

-- name: facts
-- What a verdict on these workflows goes by: the first node that failed, or with a policy all that failed or completed.
SELECT flow.id::text, flow.success_policy,
       CASE WHEN success_policy IS NOT NULL THEN ARRAY(
           SELECT task_index FROM horsies_workflow_tasks AS node
            WHERE node.workflow_id = flow.id AND node.status = 'COMPLETED') END,
       ARRAY(SELECT task_index FROM horsies_workflow_tasks AS node
              WHERE node.workflow_id = flow.id AND node.status = 'FAILED'
              ORDER BY task_index LIMIT CASE WHEN success_policy IS NULL THEN 1 END)
  FROM horsies_workflows AS flow
 WHERE flow.id = ANY (%(ids)s::uuid[]);

-- name: conclude
-- Workflows have ended: as said, with the value of their output or the error of one of their nodes.
WITH said AS MATERIALIZED (
    SELECT * FROM json_to_recordset(CAST(%(verdicts)s AS json)) AS said (id uuid, status text, culprit integer, error text)
), flow AS (
    UPDATE horsies_workflows AS flow
       SET status = said.status, completed_at = now(), deadline_at = NULL,
           result = CASE WHEN said.status <> 'COMPLETED' THEN NULL
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
           error = CASE WHEN said.status <> 'COMPLETED' THEN coalesce(
               (SELECT (node.result::json -> 'err')::text FROM horsies_workflow_results AS node
                 WHERE node.workflow_id = flow.id AND node.task_index = said.culprit), said.error) END
      FROM said
     WHERE flow.id = said.id
    RETURNING flow.id, flow.parent_workflow_id, flow.parent_task_index, flow.status, flow.gathers, flow.result,
              flow.error, flow.awaited
), summary AS (
    SELECT flow.id, json_build_object(
               'status', flow.status, 'output', flow.result::json -> 'ok',
               'total_tasks', count(*), 'completed_tasks', count(*) FILTER (WHERE node.status = 'COMPLETED'),
               'failed_tasks', count(*) FILTER (WHERE node.status = 'FAILED'),
               'skipped_tasks', count(*) FILTER (WHERE node.status = 'SKIPPED'),
               'error_summary', flow.error::json ->> 'message') AS of
      FROM flow LEFT JOIN horsies_workflow_tasks AS node ON node.workflow_id = flow.id
     WHERE flow.parent_workflow_id IS NOT NULL
     GROUP BY flow.id, flow.status, flow.result, flow.error
), above AS (
    UPDATE horsies_workflow_tasks AS node
       SET sub_workflow_summary = CASE WHEN flow.gathers THEN NULL ELSE summary.of END,
           result = CASE WHEN flow.status = 'COMPLETED' THEN coalesce(flow.result, '{"ok":null}')
                         WHEN flow.gathers THEN '{"err":' || flow.error || '}'
                         ELSE json_build_object('err', json_build_object(
                             'error_code', json_build_object('__builtin_task_code__', 'SUBWORKFLOW_FAILED'),
                             'message', 'the workflow ' || node.node_id || ' is ' || flow.status
                                        || coalesce(': ' || (flow.error::json ->> 'message'), ''),
                             'data', NULL, 'exception', NULL, 'sub_workflow_id', flow.id,
                             'sub_workflow_summary', summary.of))::text END
      FROM flow JOIN summary USING (id)
     WHERE node.workflow_id = flow.parent_workflow_id AND node.task_index = flow.parent_task_index
)
SELECT CASE WHEN awaited THEN pg_notify('workflow_done', id::text) END FROM flow;

-- name: watch
-- What has become of these workflows; those that are not over are marked, so that their end is notified. A row that is
-- locked right now is passed over and asked for again.
WITH free AS MATERIALIZED (
    SELECT id FROM horsies_workflows
     WHERE id = ANY (%(ids)s::uuid[]) AND NOT awaited
       AND status IN ('PENDING', 'RUNNING', 'PAUSED')
       AND set_config('synchronous_commit', 'off', true) IS NOT NULL
       FOR UPDATE SKIP LOCKED
), marked AS (
    UPDATE horsies_workflows SET awaited = true WHERE id = ANY (ARRAY (SELECT id FROM free)) RETURNING id
)
SELECT flow.id, flow.status, flow.result, flow.error,
       (SELECT node_id FROM horsies_workflow_tasks WHERE workflow_id = flow.id AND task_index = flow.output_task_index),
       flow.awaited OR marked.id IS NOT NULL
  FROM horsies_workflows AS flow LEFT JOIN marked ON marked.id = flow.id
 WHERE flow.id = ANY (%(ids)s::uuid[]);

-- name: look
SELECT flow.id, flow.status, flow.result, flow.error,
       (SELECT node_id FROM horsies_workflow_tasks WHERE workflow_id = flow.id AND task_index = flow.output_task_index),
       false
  FROM horsies_workflows AS flow WHERE id = %(id)s;

-- name: results
SELECT ended.node_id, ended.status, ended.result, node.dependents = '{}'
  FROM horsies_workflow_results AS ended JOIN horsies_workflow_tasks AS node USING (workflow_id, task_index)
 WHERE workflow_id = %(id)s
 ORDER BY task_index;

-- name: result_for
SELECT node_id, status, result FROM horsies_workflow_results WHERE workflow_id = %(id)s AND node_id = %(node_id)s;

-- name: nodes
-- A node whose task has been taken up shows as running, also between two tries.
SELECT node.task_index, node.node_id, node.kind, node.task_name,
       CASE WHEN node.status = 'ENQUEUED' AND (task.status = 'RUNNING' OR task.retry_count > 0) THEN 'RUNNING'
            ELSE node.status END,
       node.task_id, node.sub_workflow_id, node.queue_name, node.priority, node.dependencies,
       coalesce(task.started_at, node.started_at), node.completed_at, node.due_at, ended.result, node.sub_workflow_summary
  FROM horsies_workflow_tasks AS node
  LEFT JOIN horsies_workflow_results AS ended USING (workflow_id, task_index)
  LEFT JOIN LATERAL (SELECT live.status, live.retry_count, live.started_at FROM horsies_tasks_live AS live
                      WHERE live.id = node.task_id) AS task ON node.status = 'ENQUEUED'
 WHERE workflow_id = %(id)s
 ORDER BY task_index;

-- name: feed
-- What comes to these nodes from others, put together here, so that nobody on the way must open it. What has not ended
-- yet is left out; for what was skipped, an error says so.
WITH node AS MATERIALIZED (
    SELECT node.workflow_id, node.task_index, node.args_from, node.workflow_ctx_from, flow.root_workflow_id, flow.depth
      FROM json_to_recordset(CAST(%(nodes)s AS json)) AS said (workflow_id uuid, task_index integer)
      JOIN horsies_workflow_tasks AS node USING (workflow_id, task_index)
      JOIN horsies_workflows AS flow ON flow.id = node.workflow_id
)
SELECT node.workflow_id::text, node.task_index, json_build_object(
           'workflow_id', node.workflow_id, 'task_index', node.task_index,
           'root_workflow_id', node.root_workflow_id, 'depth', node.depth,
           'args', (SELECT json_object_agg(arg.name, horsies_told_result(source.status, source.result, source.task_index))
                      FROM json_each_text(node.args_from) AS arg (name, task_index)
                      JOIN horsies_workflow_results AS source
                        ON source.workflow_id = node.workflow_id AND source.task_index = arg.task_index::integer
                     WHERE source.status IN ('COMPLETED', 'FAILED', 'SKIPPED')),
           'context', CASE WHEN node.workflow_ctx_from IS NOT NULL THEN
               (SELECT coalesce(json_object_agg(source.node_id, horsies_told_result(source.status, source.result,
                                                                                    source.task_index)), '{}')
                  FROM unnest(node.workflow_ctx_from) AS wanted (task_index)
                  JOIN horsies_workflow_results AS source
                    ON source.workflow_id = node.workflow_id AND source.task_index = wanted.task_index
                 WHERE source.status IN ('COMPLETED', 'FAILED', 'SKIPPED')) END,
           'summaries', (SELECT json_object_agg(other.node_id, other.sub_workflow_summary)
                           FROM horsies_workflow_tasks AS other
                          WHERE other.workflow_id = node.workflow_id AND other.task_index = ANY (node.workflow_ctx_from)
                            AND other.sub_workflow_summary IS NOT NULL))::text
  FROM node;

-- name: tree
-- A workflow and all that are parts of it, for which this is to be done: those in one of these states.
WITH RECURSIVE tree AS (
    SELECT id, status FROM horsies_workflows WHERE id = %(id)s
    UNION ALL
    SELECT flow.id, flow.status FROM tree JOIN horsies_workflows AS flow ON flow.parent_workflow_id = tree.id
)
SELECT id::text FROM tree WHERE status = ANY (%(states)s::text[]);

-- name: hold
-- Workflows are paused: what was sent and has not begun is put off until they go on, in the year 9999 at the latest.
WITH flow AS (
    UPDATE horsies_workflows SET status = 'PAUSED' WHERE id = ANY (%(ids)s::uuid[])
    RETURNING id, awaited
), held AS (
    UPDATE horsies_tasks AS task
       SET status = 'PENDING', claim_seq = task.claim_seq + 1, claimed_by_worker_id = NULL, claimed_at = NULL,
           claim_expires_at = NULL, enqueued_at = '9999-01-01'
      FROM horsies_workflow_tasks AS node
     WHERE task.live AND node.workflow_id = ANY (%(ids)s::uuid[]) AND node.status = 'ENQUEUED'
       AND task.id = node.task_id AND task.status IN ('PENDING', 'CLAIMED')
)
SELECT count(CASE WHEN awaited THEN pg_notify('workflow_done', id::text) END) FROM flow;

-- name: let_go
-- Workflows go on: what was put off is due now, or when its retry is.
WITH due AS (
    UPDATE horsies_tasks AS task SET enqueued_at = greatest(now(), task.next_retry_at)
      FROM horsies_workflow_tasks AS node
     WHERE task.live AND node.workflow_id = ANY (%(ids)s::uuid[]) AND node.status = 'ENQUEUED'
       AND task.id = node.task_id AND task.status = 'PENDING'
    RETURNING task.queue_name
)
SELECT count(pg_notify(horsies_queue_channel(queue_name), '')) FROM (SELECT DISTINCT queue_name FROM due) AS touched;

-- name: stop
-- Workflows are over before their end. What has not begun is not begun; what runs may end, and is written down.
WITH cancelled AS (
    UPDATE horsies_tasks AS task
       SET live = false, status = 'CANCELLED', error_code = 'TASK_CANCELLED', result = %(result)s, terminal_at = now()
      FROM horsies_workflow_tasks AS node
     WHERE node.workflow_id = ANY (%(ids)s::uuid[]) AND node.status = 'ENQUEUED'
       AND task.live AND task.id = node.task_id AND task.status IN ('PENDING', 'CLAIMED')
    RETURNING task.id, task.awaited
), skipped AS (
    UPDATE horsies_workflow_tasks AS node
       SET status = 'SKIPPED', completed_at = now(), due_at = NULL, result = NULL
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
), told AS (
    SELECT count(CASE WHEN awaited THEN pg_notify('task_done', id::text) END) FROM cancelled
), above AS (
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
  FROM flow CROSS JOIN told
 WHERE parent_workflow_id IS NULL OR parent_workflow_id <> ALL (%(ids)s::uuid[]);

-- name: signal
-- Give a value to the nodes that wait for this signal, or will. One that has a value keeps it.
UPDATE horsies_workflow_tasks AS node
   SET result = %(result)s
  FROM horsies_workflows AS flow
 WHERE flow.id = %(id)s AND flow.status IN ('PENDING', 'RUNNING', 'PAUSED') AND node.workflow_id = flow.id
   AND node.kind = 'signal' AND node.task_name = %(name)s AND node.result IS NULL
   AND node.status IN ('PENDING', 'READY', 'RUNNING')
RETURNING node.workflow_id::text, node.task_index, node.status;

-- name: due
-- Sleeps that are over, and signals that were not given in time; of these workflows, or of any.
SELECT workflow_id::text, task_index, kind FROM horsies_workflow_tasks
 WHERE due_at <= now() AND (%(ids)s::uuid[] IS NULL OR workflow_id = ANY (%(ids)s::uuid[]))
 ORDER BY due_at
 LIMIT 500;

-- name: overdue
-- Workflows that have not ended by their deadline; of these, or of all.
SELECT id::text FROM horsies_workflows
 WHERE deadline_at <= now() AND (%(ids)s::uuid[] IS NULL OR id = ANY (%(ids)s::uuid[]))
 ORDER BY deadline_at
 LIMIT 100;

-- name: next_timer
-- Seconds until the next sleep, signal or deadline is due.
SELECT extract(epoch FROM least(
           (SELECT min(due_at) FROM horsies_workflow_tasks WHERE due_at IS NOT NULL),
           (SELECT min(deadline_at) FROM horsies_workflows WHERE deadline_at IS NOT NULL)) - now())::double precision;

-- name: reset
-- Make what failed or was skipped in these workflows as if it had never begun, and count anew what waits for what.
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
-- How far the dependencies of what has not ended are, and what can begin.
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
         WHERE waiting.workflow_id = ANY (%(ids)s::uuid[]) 
           AND waiting.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')
         GROUP BY waiting.workflow_id, waiting.task_index) AS counted
 WHERE node.workflow_id = counted.workflow_id AND node.task_index = counted.task_index;

-- name: expand
-- The items of these maps become a workflow of their own, one task for each. Tells how many there are; none at all where
-- there is no list.
WITH mapped AS MATERIALIZED (
    SELECT node.*, horsies_new_id() AS child_id, flow.root_workflow_id, flow.depth, arg.name AS param,
           source.result::json -> 'ok' AS items
      FROM json_to_recordset(CAST(%(nodes)s AS json)) AS said (workflow_id uuid, task_index integer)
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
    INSERT INTO horsies_workflow_tasks (workflow_id, task_index, task_id, timeout_ms, priority, max_retries, is_async,
                                        started_at, open_deps, status, kind, join_type, node_id, task_name, queue_name,
                                        rate_key, task_kwargs, task_options)
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
SELECT mapped.workflow_id::text, mapped.task_index, mapped.child_id::text, listed.count
  FROM mapped LEFT JOIN listed USING (workflow_id, task_index);

-- name: built
-- The rows that were made for these nodes.
SELECT node.workflow_id::text, node.task_index, task.result
  FROM json_to_recordset(CAST(%(nodes)s AS json)) AS said (workflow_id uuid, task_index integer)
  JOIN horsies_workflow_tasks AS node USING (workflow_id, task_index)
  JOIN horsies_tasks AS task ON task.id = node.task_id AND NOT task.live AND task.terminal_at = now();

-- name: adopt
UPDATE horsies_workflow_tasks SET sub_workflow_id = %(child)s
 WHERE workflow_id = %(workflow_id)s AND task_index = %(task_index)s;

-- name: late
-- Tasks of workflows whose time ran out before they were started, here or in this worker.
SELECT task.id::text, task.workflow_id::text FROM horsies_tasks_live AS task
 WHERE task.good_until <= now() AND task.workflow_id IS NOT NULL
   AND (task.status = 'PENDING' OR (task.status = 'CLAIMED' AND task.claimed_by_worker_id = %(worker_id)s))
 ORDER BY task.good_until
 LIMIT 500;

-- name: expire
WITH ended AS (
    UPDATE horsies_tasks AS task
       SET live = false, status = 'EXPIRED', error_code = 'TASK_EXPIRED', result = %(result)s, terminal_at = now()
     WHERE task.live AND task.id = ANY (%(ids)s::uuid[]) AND task.good_until <= now()
       AND (task.status = 'PENDING' OR (task.status = 'CLAIMED' AND task.claimed_by_worker_id = %(worker_id)s))
    RETURNING task.id, task.task_name, task.queue_name, task.workflow_id, task.workflow_index, task.awaited
)
SELECT CASE WHEN awaited THEN pg_notify('task_done', id::text) END, workflow_index, id::text, task_name, queue_name,
       workflow_id::text
  FROM ended;

-- name: list
SELECT id::text, name, status, sent_at, started_at, completed_at, open_tasks,
       (SELECT count(*) FROM horsies_workflow_tasks AS node WHERE node.workflow_id = flow.id),
       error::json ->> 'message', parent_workflow_id::text, definition_key
  FROM horsies_workflows AS flow
 WHERE (%(status)s::text IS NULL OR status = %(status)s) AND (%(name)s::text IS NULL OR name = %(name)s)
   AND (%(all)s OR parent_workflow_id IS NULL)
 ORDER BY sent_at DESC, id DESC
 LIMIT %(limit)s;

-- name: show
SELECT id::text, name, status, sent_at, started_at, completed_at, open_tasks, deadline_at, error, parent_workflow_id::text,
       definition_key, on_error
  FROM horsies_workflows WHERE id = %(id)s;
