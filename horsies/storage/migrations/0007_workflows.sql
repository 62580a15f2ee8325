-- Workflows: graphs of tasks that move forward in the transactions that end their tasks.

-- One row for each workflow, sub-workflows too. Whoever moves any workflow of a tree forward locks the root's row first,
-- several of them in the order of their ids. `open_tasks` counts the nodes that have not ended, so that a step need not
-- look at all of them.
CREATE TABLE horsies_workflows (
    id                 uuid        PRIMARY KEY,
    root_workflow_id   uuid        NOT NULL,
    parent_workflow_id uuid,
    parent_task_index  integer,
    depth              integer     NOT NULL DEFAULT 0,
    sent_at            timestamptz NOT NULL DEFAULT now(),
    started_at         timestamptz,
    completed_at       timestamptz,
    deadline_at        timestamptz,
    deadline_seconds   double precision,
    output_task_index  integer,
    open_tasks         integer     NOT NULL,
    awaited            boolean     NOT NULL DEFAULT false,
    gathers            boolean     NOT NULL DEFAULT false,
    status             text        NOT NULL,
    on_error           text        NOT NULL,
    name               text        NOT NULL,
    definition_key     text        NOT NULL,
    success_policy     text,
    result             text,
    error              text,
    CONSTRAINT horsies_workflows_status CHECK (status IN
        ('PENDING', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')),
    CONSTRAINT horsies_workflows_open CHECK (open_tasks >= 0)
) WITH (fillfactor = 50);
CREATE INDEX horsies_workflows_parent ON horsies_workflows (parent_workflow_id) WHERE parent_workflow_id IS NOT NULL;
CREATE INDEX horsies_workflows_age ON horsies_workflows (completed_at) WHERE completed_at IS NOT NULL;
CREATE INDEX horsies_workflows_deadline ON horsies_workflows (deadline_at) WHERE deadline_at IS NOT NULL;

-- One row for each node, with all that it will need. Columns that a step changes stand together, and none of them is
-- indexed: a step writes little. `due_at` is when a sleep or the patience for a signal ends. The result of a task is not
-- kept here but with the task, which ended at the same moment: see horsies_workflow_results.
CREATE TABLE horsies_workflow_tasks (
    workflow_id          uuid        NOT NULL,
    task_index           integer     NOT NULL,
    task_id              uuid,
    sub_workflow_id      uuid,
    good_until           timestamptz,
    seconds              double precision,
    min_success          integer,
    timeout_ms           integer,
    priority             smallint,
    max_retries          smallint,
    is_async             boolean     NOT NULL DEFAULT false,
    allow_failed_deps    boolean     NOT NULL DEFAULT false,
    due_at               timestamptz,
    started_at           timestamptz,
    completed_at         timestamptz,
    open_deps            integer     NOT NULL,
    completed_deps       integer     NOT NULL DEFAULT 0,
    failed_deps          integer     NOT NULL DEFAULT 0,
    open_sources         integer     NOT NULL DEFAULT 0,
    status               text        NOT NULL,
    kind                 text        NOT NULL,
    join_type            text        NOT NULL,
    node_id              text        NOT NULL,
    task_name            text        NOT NULL,
    queue_name           text,
    rate_key             text,
    task_kwargs          text,
    task_options         text,
    sub_definition_key   text,
    args_from            json,
    dependencies         integer[]   NOT NULL DEFAULT '{}',
    dependents           integer[]   NOT NULL DEFAULT '{}',
    workflow_ctx_from    integer[],
    sub_workflow_summary json,
    result               text,
    PRIMARY KEY (workflow_id, task_index),
    CONSTRAINT horsies_workflow_tasks_status CHECK (status IN
        ('PENDING', 'READY', 'ENQUEUED', 'RUNNING', 'COMPLETED', 'FAILED', 'SKIPPED')),
    CONSTRAINT horsies_workflow_tasks_kind CHECK (kind IN ('task', 'workflow', 'map', 'sleep', 'signal')),
    CONSTRAINT horsies_workflow_tasks_counts CHECK (open_deps >= 0 AND open_sources >= 0)
) WITH (fillfactor = 60);
CREATE INDEX horsies_workflow_tasks_due ON horsies_workflow_tasks (due_at) WHERE due_at IS NOT NULL;

-- Which node a task belongs to, if any.
ALTER TABLE horsies_tasks ADD COLUMN workflow_id uuid;
ALTER TABLE horsies_tasks ADD COLUMN workflow_index integer;

-- What came of each node. A task's result is found by the moment at which task and node ended, which is the same, and
-- which names the one history partition to look into.
CREATE VIEW horsies_workflow_results AS
SELECT node.workflow_id, node.task_index, node.node_id, node.status, coalesce(node.result, task.result) AS result
  FROM horsies_workflow_tasks AS node
  LEFT JOIN LATERAL (SELECT ended.result FROM horsies_tasks AS ended
                      WHERE ended.id = node.task_id AND NOT ended.live AND ended.terminal_at = node.completed_at
                      LIMIT 1) AS task ON node.status IN ('COMPLETED', 'FAILED');

-- An id as producers make them, for tasks that are made here: ids sort by time, and those of one statement by place.
CREATE FUNCTION horsies_new_id(place integer DEFAULT 0) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT (lpad(to_hex(stamp >> 12), 12, '0') || '7' || lpad(to_hex(stamp & 4095), 3, '0')
            || right(replace(gen_random_uuid()::text, '-', ''), 16))::uuid
      FROM (SELECT (floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint << 12) + place AS stamp) AS told
$$;

-- What a node is told of one before it: its result, or why there is none.
CREATE FUNCTION horsies_told_result(status text, result text, task_index integer) RETURNS json
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(result::json, json_build_object('err', json_build_object(
        'error_code', json_build_object('__builtin_task_code__',
            CASE status WHEN 'SKIPPED' THEN 'UPSTREAM_SKIPPED' ELSE 'RESULT_NOT_AVAILABLE' END),
        'message', CASE status WHEN 'SKIPPED' THEN 'the node before was skipped'
                               ELSE 'the result of the node before is not kept any more' END,
        'data', json_build_object('dependency_index', task_index), 'exception', NULL)))
$$;
