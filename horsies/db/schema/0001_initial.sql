-- The schema: tables with their indexes, views, functions, triggers, rights. Each object is defined once. The statements
-- run with the schema of the tables first in the search path.

-- Ids ---------------------------------------------------------------------------------------------------------------

-- Return a new id in the form in which producers create them, a UUID of version 7: 48 bits of milliseconds, 12 bits of their
-- fraction, and 62 random bits. So ids sort by the time of sending, whoever sends. Those of one statement sort by `place`. It
-- is one expression that names the schema of every function and operator: PostgreSQL inlines it into its callers.
CREATE FUNCTION horsies_new_id(place integer DEFAULT 0) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT (pg_catalog."overlay"(
                pg_catalog.lpad(pg_catalog.to_hex(
                    pg_catalog.floor(pg_catalog.date_part('epoch'::pg_catalog.text, pg_catalog.clock_timestamp())
                                     OPERATOR(pg_catalog.*) 4096000::pg_catalog.float8)::pg_catalog.int8
                    OPERATOR(pg_catalog.+) place), 15, '0'::pg_catalog.text),
                '7'::pg_catalog.text, 13, 0)
            OPERATOR(pg_catalog.||) pg_catalog.right(pg_catalog.gen_random_uuid()::pg_catalog.text, 17))::pg_catalog.uuid
$$;

-- Tasks ---------------------------------------------------------------------------------------------------------------

-- This table holds all tasks. Its live partition is small and holds the tasks that have not ended. A task that ends moves
-- to history, which has a partition for each day. Programs use one name for all of them: horsies_tasks.
--
-- There are no check constraints on this table. PostgreSQL reads and plans a check anew for each statement that writes a
-- row, whatever the statement changes. Checks took a quarter of the time of ending one task and claiming the next. So the
-- insert trigger checks new rows, and the doctor finds rows that went wrong later.
CREATE TABLE horsies_tasks (
    id                   uuid        NOT NULL DEFAULT horsies_new_id(),
    sent_at              timestamptz NOT NULL DEFAULT now(),
    enqueued_at          timestamptz NOT NULL DEFAULT now(),
    good_until           timestamptz,
    claimed_at           timestamptz,
    started_at           timestamptz,
    next_retry_at        timestamptz,
    completed_at         timestamptz,
    failed_at            timestamptz,
    terminal_at          timestamptz,
    claimed_by_worker_id uuid,
    claim_seq            integer     NOT NULL DEFAULT 0,
    worker_pid           integer,
    timeout_ms           integer,
    priority             smallint    NOT NULL DEFAULT 100,
    retry_count          smallint    NOT NULL DEFAULT 0,
    max_retries          smallint    NOT NULL DEFAULT 0,
    crash_count          smallint    NOT NULL DEFAULT 0,
    live                 boolean     NOT NULL DEFAULT true,
    is_async             boolean     NOT NULL DEFAULT false,
    awaited              boolean     NOT NULL DEFAULT false,
    status               text        NOT NULL DEFAULT 'PENDING',
    task_name            text        NOT NULL,
    queue_name           text        NOT NULL DEFAULT 'default',
    args                 text,
    kwargs               text,
    task_options         text,
    unique_key           text,
    tags                 text[],
    worker_hostname      text,
    worker_process_name  text,
    error_code           text,
    failed_reason        text,
    result               text,
    -- The lane of the task within its queue: `key=` and its key, `batch=` and its name, else the name of its rate limit, else ''. Claims of other
    -- tasks do not walk over those that must wait. Keys are walked in the order of this column, which is that of the bytes.
    rate_key             text        COLLATE "C" NOT NULL DEFAULT '',
    -- The attempts before an operator sent the failed task again. It has a fresh retry budget since then, and its attempts
    -- are numbered on from here.
    earlier_attempts     smallint    NOT NULL DEFAULT 0,
    -- The workflow node that the task belongs to, if any.
    workflow_id          uuid,
    workflow_index       integer,
    -- The time at which the running task was asked to stop. However it ends after that, it counts as cancelled.
    cancel_asked_at      timestamptz,
    -- The due time of a task that waits for a worker that knows it. It is set when a worker that does not know the task puts
    -- it off, and no live worker knows it.
    unknown_since        timestamptz,
    -- The time at which that task fails.
    unknown_until        timestamptz,
    -- How much of the rate of its key the task uses up. NULL stands for 1.
    cost                 real,
    -- The time at which the task was parked. It waits for `enqueued_at`, for a signal or for tasks that it has called, and no
    -- worker claims it: it is not in the index for claims.
    parked_at            timestamptz,
    -- The task that has called this one and waits for it, and the step in which it did.
    parent_id            uuid,
    parent_step          text,
    -- The unique key of the task that this one follows: it is parked until no live task has that key, and then takes the key.
    follows              text
) PARTITION BY LIST (live);

-- No index or predicate on the live partition names a column that a claim changes. So a claim is a HOT update, which writes
-- no index. The new version of the row needs room on the same page, and it is about 50 bytes longer. At fillfactor 40, all
-- rows of a page find that room. At 60, half of them did, and settling and claiming took twice as long.
CREATE TABLE horsies_tasks_live PARTITION OF horsies_tasks (
    CONSTRAINT horsies_tasks_live_owner CHECK ((status = 'PENDING') = (claimed_by_worker_id IS NULL))
) FOR VALUES IN (true) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2, fillfactor = 40
);
CREATE INDEX horsies_tasks_live_expiry ON horsies_tasks_live (good_until) WHERE good_until IS NOT NULL;
CREATE UNIQUE INDEX horsies_tasks_live_unique ON horsies_tasks_live (unique_key) WHERE unique_key IS NOT NULL;
CREATE INDEX horsies_tasks_live_unknown ON horsies_tasks_live (task_name) WHERE unknown_since IS NOT NULL;
-- At most one task follows that of a unique key.
CREATE UNIQUE INDEX horsies_tasks_live_follows ON horsies_tasks_live (follows) WHERE follows IS NOT NULL;
-- The tasks that are parked in a step, by the time at which they go on.
CREATE INDEX horsies_tasks_live_parked ON horsies_tasks_live (enqueued_at, id) WHERE parked_at IS NOT NULL AND follows IS NULL;
-- The failed tasks that could not be moved to history. As a rule there are none, and a list of failures need not read the table.
CREATE INDEX horsies_tasks_live_failed ON horsies_tasks_live (failed_at, id) WHERE failed_at IS NOT NULL;

-- A task must be found by its key through the primary key, even with a plan that was made when the table was nearly empty.
-- If two indexes seem to cost the same, the planner takes the younger one, so the primary key comes after the indexes above.
ALTER TABLE horsies_tasks_live ADD CONSTRAINT horsies_tasks_live_pkey PRIMARY KEY (id);

-- The index for claims ends in the key, too. In a table that is nearly empty and full of dead rows, as next to an old
-- snapshot, the planner would take it for as good a way to a task by its key, and walk over all dead rows. Its condition
-- reserves the index for claims: they say `priority <> 0`, which is true of every task. (With `priority > 0`, a claim
-- would begin to read there, and not after the last claimed task.) Parked tasks are not in the index, so that no claim walks
-- over them, however many there are.
CREATE INDEX horsies_tasks_live_claim
    ON horsies_tasks_live (queue_name, is_async, rate_key, priority, enqueued_at, id)
 WHERE priority <> 0 AND parked_at IS NULL;

-- The tasks with a key by their due time. Parked and all other tasks are not in this index. Nothing but the next due time is read here.
CREATE INDEX horsies_tasks_live_keyed
    ON horsies_tasks_live (queue_name, is_async, enqueued_at)
 WHERE rate_key >= 'key=' AND rate_key < 'key>' AND parked_at IS NULL;

-- From PostgreSQL 18 on, an index can be searched for its last column alone: the search skips from one enqueued_at to the
-- next. In the index for claims, that is a walk over everything. The planner thinks it is cheap if a bulk send has given all
-- rows the same enqueued_at, or if the statistics say that the queues lie in order. So it is told that all values of
-- enqueued_at are different, and it gets no statistics of the queues.
ALTER TABLE horsies_tasks_live
    ALTER COLUMN enqueued_at SET (n_distinct = -1),
    ALTER COLUMN queue_name SET STATISTICS 0;

-- The tasks that have ended, in partitions by day. horsies_prepare_history creates them.
CREATE TABLE horsies_tasks_history PARTITION OF horsies_tasks
    FOR VALUES IN (false) PARTITION BY RANGE (terminal_at);
-- This partition holds the tasks that end on a day without a partition.
CREATE TABLE horsies_tasks_history_default PARTITION OF horsies_tasks_history (
    CONSTRAINT horsies_tasks_history_default_pkey PRIMARY KEY (id)
) DEFAULT;
-- Failures are few, and people look for them among very many tasks that went well.
CREATE INDEX horsies_tasks_failed ON horsies_tasks_history (terminal_at, id) WHERE status = 'FAILED';
-- Tasks by the time of their end. A partition of one day is small enough to be read as a whole, so this index need not be
-- exact, and it costs next to nothing to keep.
CREATE INDEX horsies_tasks_ended ON horsies_tasks_history USING brin (terminal_at) WITH (pages_per_range = 32);

-- Attempts that were followed by another one. The last attempt of a task is in the task's own row. The view
-- horsies_task_attempts shows both.
CREATE TABLE horsies_attempts (
    task_id             uuid        NOT NULL,
    claim_seq           integer     NOT NULL,
    attempt             integer     NOT NULL,
    outcome             text        NOT NULL,
    started_at          timestamptz,
    finished_at         timestamptz NOT NULL DEFAULT now(),
    error_code          text,
    error_message       text,
    failed_reason       text,
    worker_id           uuid,
    worker_hostname     text,
    worker_pid          integer,
    worker_process_name text,
    requeued_at         timestamptz,
    traceback           text,
    PRIMARY KEY (task_id, claim_seq)
);
CREATE INDEX horsies_attempts_finished ON horsies_attempts (finished_at);
CREATE INDEX horsies_attempts_requeued ON horsies_attempts (requeued_at) WHERE requeued_at IS NOT NULL;

-- The progress that each task reported last. A report of an earlier run does not replace that of a later one.
CREATE TABLE horsies_progress (
    task_id   uuid             PRIMARY KEY,
    claim_seq integer          NOT NULL,
    done      double precision NOT NULL,
    total     double precision,
    message   text             NOT NULL DEFAULT '',
    at        timestamptz      NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
CREATE INDEX horsies_progress_age ON horsies_progress (at);

-- The log lines of tasks. The lines of a run are numbered from 0. If a run logs more lines than are kept, the last ones
-- stay, and the gap in the numbers tells how many are missing.
CREATE TABLE horsies_task_logs (
    task_id   uuid        NOT NULL,
    claim_seq integer     NOT NULL,
    seq       integer     NOT NULL,
    attempt   integer     NOT NULL,
    at        timestamptz NOT NULL,
    level     text        NOT NULL,
    logger    text        NOT NULL,
    message   text        NOT NULL,
    PRIMARY KEY (task_id, claim_seq, seq)
);
CREATE INDEX horsies_task_logs_age ON horsies_task_logs (at);

-- The steps of tasks. A step with an `ended_at` is stored: its result is {"ok": …}, or {"err": …} for a wait or a call that
-- failed, and never changes. A step without one is what its task waits for: until `due_at`, or for the tasks in `calls`, of
-- which `open_calls` have not ended.
CREATE TABLE horsies_steps (
    task_id    uuid        NOT NULL,
    name       text        NOT NULL,
    kind       text        NOT NULL,
    claim_seq  integer     NOT NULL,
    attempt    integer     NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    ended_at   timestamptz,
    due_at     timestamptz,
    open_calls integer,
    calls      uuid[],
    result     text,
    PRIMARY KEY (task_id, name),
    CONSTRAINT horsies_steps_name CHECK (length(name) BETWEEN 1 AND 255),
    CONSTRAINT horsies_steps_kind CHECK (kind IN ('step', 'transact', 'sleep', 'wait', 'call', 'calls')),
    CONSTRAINT horsies_steps_result CHECK ((ended_at IS NULL) = (result IS NULL))
);
CREATE INDEX horsies_steps_age ON horsies_steps (started_at);

-- The signals that tasks were given, as JSON. One that comes before its task waits for it is kept.
CREATE TABLE horsies_signals (
    task_id uuid        NOT NULL,
    name    text        NOT NULL,
    value   text        NOT NULL,
    sent_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (task_id, name),
    CONSTRAINT horsies_signals_name CHECK (length(name) BETWEEN 1 AND 255)
);
CREATE INDEX horsies_signals_age ON horsies_signals (sent_at);

-- Signs of life of tasks that run for long. Nothing depends on them: the lease of a worker decides if it is alive.
CREATE TABLE horsies_heartbeats (
    id        bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    task_id   uuid        NOT NULL,
    sender_id text        NOT NULL,
    role      text        NOT NULL CONSTRAINT horsies_heartbeats_role CHECK (role IN ('claimer', 'runner')),
    sent_at   timestamptz NOT NULL DEFAULT now(),
    hostname  text        NOT NULL,
    pid       integer     NOT NULL,
    memory_mb double precision
);
CREATE INDEX horsies_heartbeats_latest ON horsies_heartbeats (task_id, role, sent_at DESC);
CREATE INDEX horsies_heartbeats_age ON horsies_heartbeats (sent_at);

-- The options of each task, as the workers that know it have stored them. horsies_send uses them.
CREATE TABLE horsies_task_definitions (
    task_name    text        PRIMARY KEY,
    queue_name   text        NOT NULL,
    priority     smallint    NOT NULL,
    is_async     boolean     NOT NULL,
    max_retries  smallint    NOT NULL,
    timeout_ms   integer,
    task_options text,
    updated_at   timestamptz NOT NULL DEFAULT now(),
    rate_key     text        NOT NULL DEFAULT '',
    -- The parameter whose value is the key of a task, or `()` if only Python can compute it.
    key_source      text,
    -- How many tasks of one key may run at once, if the next of them is this one.
    key_concurrency integer,
    -- The rate limit of each key: see horsies_rates.
    key_seconds     double precision,
    key_burst       integer,
    -- What a send does whose unique key a live task has: see horsies_debounce.
    on_conflict     text        NOT NULL DEFAULT 'first'
);

-- A key outlives its task, so that the same request sent again finds it.
CREATE TABLE horsies_idempotency_keys (
    idempotency_key text        PRIMARY KEY,
    task_id         uuid        NOT NULL,
    enqueue_sha     text        NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX horsies_idempotency_keys_age ON horsies_idempotency_keys (created_at);

-- Workers -------------------------------------------------------------------------------------------------------------

-- One row for each worker process. A worker takes a new id at each start. Until the lease expires, the worker counts as
-- alive. A worker that sleeps until it is notified is `waiting` for plain tasks, `waiting_async` for async ones, or both: it
-- may have room for one kind only.
CREATE TABLE horsies_workers (
    worker_id        uuid        PRIMARY KEY,
    hostname         text        NOT NULL,
    pid              integer     NOT NULL,
    started_at       timestamptz NOT NULL DEFAULT now(),
    last_beat_at     timestamptz NOT NULL DEFAULT now(),
    lease_expires_at timestamptz NOT NULL,
    dead_at          timestamptz,
    waiting          boolean     NOT NULL DEFAULT false,
    state            text        NOT NULL DEFAULT 'started',
    processes        integer     NOT NULL,
    queues           text[]      NOT NULL,
    waiting_async    boolean     NOT NULL DEFAULT false,
    -- The tasks that the worker knows. Senders read this table, so long lists are stored apart from the rows.
    task_names       text[]      NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50, toast_tuple_target = 256);

-- Snapshots of workers over time. Each row is complete in itself, so that it can be read long after its worker is gone.
-- `children` lists the processes in which the worker runs tasks, idle ones too: the pid of each, the task it holds, and the
-- time at which it was started.
CREATE TABLE horsies_worker_states (
    id                    bigint           PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    worker_id             uuid             NOT NULL,
    snapshot_at           timestamptz      NOT NULL DEFAULT now(),
    hostname              text             NOT NULL,
    pid                   integer          NOT NULL,
    state                 text             NOT NULL,
    processes             integer          NOT NULL,
    max_claim_batch       bigint           NOT NULL,
    max_claim_per_worker  bigint           NOT NULL,
    cluster_wide_cap      bigint,
    queues                text[]           NOT NULL,
    queue_priorities      jsonb            NOT NULL,
    queue_max_concurrency jsonb            NOT NULL,
    recovery_config       jsonb            NOT NULL,
    tasks_running         integer          NOT NULL,
    tasks_claimed         integer          NOT NULL,
    memory_usage_mb       double precision NOT NULL,
    memory_percent        double precision NOT NULL,
    cpu_percent           double precision NOT NULL,
    children_memory_mb    double precision NOT NULL,
    worker_started_at     timestamptz      NOT NULL,
    current_task_ids      uuid[]           NOT NULL,
    children              jsonb            NOT NULL DEFAULT '[]',
    CONSTRAINT horsies_worker_states_few_ids CHECK (cardinality(current_task_ids) <= 100)
);
CREATE INDEX horsies_worker_states_latest ON horsies_worker_states (worker_id, snapshot_at DESC);
CREATE INDEX horsies_worker_states_age ON horsies_worker_states (snapshot_at);

-- Limits of the whole cluster -----------------------------------------------------------------------------------------

-- The number of tasks that a worker holds of each queue with a limit, as of its last claim. The queue '' stands for all
-- tasks that it holds. To count the tasks themselves would take an index on their status, which every claim would write.
CREATE TABLE horsies_in_flight (
    queue_name text    NOT NULL,
    worker_id  uuid    NOT NULL REFERENCES horsies_workers ON DELETE CASCADE,
    tasks      integer NOT NULL,
    PRIMARY KEY (queue_name, worker_id)
) WITH (fillfactor = 50);
CREATE INDEX horsies_in_flight_worker ON horsies_in_flight (worker_id);

-- Rate limits. One task may start every `seconds`, and up to `burst` tasks at once after a quiet time. The next task is due
-- `seconds` after `spent_until`, and not before `held_until`: a task has raised RateLimited. A row with 0 seconds is a limit
-- that was removed, or stands for the lane of a task that runs in batches.
CREATE TABLE horsies_rates (
    rate_key    text             COLLATE "C" PRIMARY KEY,
    seconds     double precision NOT NULL,
    burst       integer          NOT NULL,
    spent_until timestamptz      NOT NULL DEFAULT '-infinity',
    held_until  timestamptz      NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);

-- The running tasks of each key, so that they can be counted without an index on the status of tasks. A slot counts as long as
-- its task has this claim_seq and has not ended. So whatever ends or releases a task frees its slot in the same moment, and
-- a slot that was left behind blocks nothing. Claims delete the free slots of the keys that they visit, and the reaper the others.
CREATE TABLE horsies_key_slots (
    rate_key  text        COLLATE "C" NOT NULL,
    task_id   uuid        NOT NULL,
    claim_seq integer     NOT NULL,
    taken_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (rate_key, task_id, claim_seq)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);

-- The keys that must wait: for their rate, because a task has raised RateLimited, or because an operator has paused them. A
-- rate limit is counted as in horsies_rates. No task of the key starts before `waits_until`. `next_at` is the next time at which one
-- may start, as far as it is known. A row is deleted when it says nothing any more.
CREATE TABLE horsies_keys (
    rate_key    text        COLLATE "C" PRIMARY KEY,
    spent_until timestamptz NOT NULL DEFAULT '-infinity',
    waits_until timestamptz NOT NULL DEFAULT '-infinity',
    next_at     timestamptz NOT NULL DEFAULT '-infinity',
    paused_at   timestamptz,
    paused_by   text
) WITH (fillfactor = 70);
CREATE INDEX horsies_keys_next ON horsies_keys (next_at) WHERE paused_at IS NULL;

-- Workflows -----------------------------------------------------------------------------------------------------------

-- One row for each workflow and each sub-workflow. A transaction that moves any workflow of a tree forward locks the row of
-- the root first. If it moves several trees, it locks the roots in the order of their ids. `open_tasks` counts the nodes
-- that have not ended, so that a step need not look at all of them. A trigger keeps `paused_at` and `resumed_at`, because
-- the failure of a node may pause a workflow, too.
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
    paused_at          timestamptz,
    resumed_at         timestamptz,
    CONSTRAINT horsies_workflows_status CHECK (status IN
        ('PENDING', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')),
    CONSTRAINT horsies_workflows_open CHECK (open_tasks >= 0)
) WITH (fillfactor = 50);
CREATE INDEX horsies_workflows_parent ON horsies_workflows (parent_workflow_id) WHERE parent_workflow_id IS NOT NULL;
CREATE INDEX horsies_workflows_age ON horsies_workflows (completed_at) WHERE completed_at IS NOT NULL;
CREATE INDEX horsies_workflows_deadline ON horsies_workflows (deadline_at) WHERE deadline_at IS NOT NULL;
CREATE INDEX horsies_workflows_started ON horsies_workflows (started_at) WHERE started_at IS NOT NULL;
CREATE INDEX horsies_workflows_paused ON horsies_workflows (paused_at) WHERE paused_at IS NOT NULL;
CREATE INDEX horsies_workflows_resumed ON horsies_workflows (resumed_at) WHERE resumed_at IS NOT NULL;

-- One row for each node, with all that the node will need. The columns that a step changes stand together, and only `due_at`
-- is indexed, so that a step writes little. `due_at` is the time at which a sleep or the wait for a signal ends. The result of
-- a task is not copied here. The view horsies_workflow_results reads it from the task.
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
-- For the list of what waits for people. A node never changes its kind, so no step writes to this index.
CREATE INDEX horsies_workflow_tasks_signals ON horsies_workflow_tasks (workflow_id) WHERE kind = 'signal';

-- Schedules, operators and events -------------------------------------------------------------------------------------

-- One row for each schedule. A scheduler stores the schedules of the code when it first sees them. Programs create others at
-- run time. `definition` is the schedule that runs. No slot before `next_run_at` will run any more. `next_run_at` is NULL
-- while a schedule is paused or not enabled. `last_run_at` is the last slot that ran. A trigger sets `fired_at` to the time
-- at which that happened, which may be long after the slot.
CREATE TABLE horsies_schedule_state (
    schedule_name text        PRIMARY KEY,
    source        text        NOT NULL DEFAULT 'runtime',
    definition    text        NOT NULL,
    config_hash   text        NOT NULL,
    enabled       boolean     NOT NULL DEFAULT true,
    paused_at     timestamptz,
    next_run_at   timestamptz,
    last_run_at   timestamptz,
    last_task_id  uuid,
    run_count     bigint      NOT NULL DEFAULT 0,
    skip_count    bigint      NOT NULL DEFAULT 0,
    error         text,
    error_at      timestamptz,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    fired_at      timestamptz,
    CONSTRAINT horsies_schedule_state_name CHECK (length(schedule_name) BETWEEN 1 AND 255),
    CONSTRAINT horsies_schedule_state_source CHECK (source IN ('code', 'runtime')),
    CONSTRAINT horsies_schedule_state_stopped CHECK (next_run_at IS NULL OR (enabled AND paused_at IS NULL))
) WITH (fillfactor = 70);
CREATE INDEX horsies_schedule_state_due ON horsies_schedule_state (next_run_at, schedule_name)
 WHERE next_run_at IS NOT NULL;

-- No worker claims from a suspended queue. The empty name stands for all queues.
CREATE TABLE horsies_suspensions (
    queue_name   text        PRIMARY KEY,
    suspended_at timestamptz NOT NULL DEFAULT now(),
    suspended_by text        NOT NULL
);

-- The actions of operators: the person, the action, and the number of tasks it changed.
CREATE TABLE horsies_actions (
    id       bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    acted_at timestamptz NOT NULL DEFAULT now(),
    actor    text        NOT NULL,
    action   text        NOT NULL,
    subject  text        NOT NULL,
    tasks    bigint      NOT NULL DEFAULT 0
);
CREATE INDEX horsies_actions_age ON horsies_actions (acted_at);

-- Events are read from the rows of tasks, workflows and schedules, which have the time of each. A sink has accepted all
-- events up to its `position`.
CREATE TABLE horsies_event_cursors (
    sink       text        PRIMARY KEY,
    position   timestamptz NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- Counts over time ----------------------------------------------------------------------------------------------------

-- The tasks that ended in each minute, by queue and task, so that a day can be drawn without counting tasks. The row with the
-- empty queue and the empty task sums up a minute. Every minute has one, so the newest shows how far the counting has come.
-- `wait_ms` and `run_ms` are sums in milliseconds. `waits` and `runs` are histograms: they count the tasks below each bound
-- of horsies_time_bounds() and, in the end, those above the last one. `max_wait_seconds` and `max_run_seconds` are the longest
-- times, NULL if there is none.
CREATE TABLE horsies_rollups (
    minute           timestamptz      NOT NULL,
    queue_name       text             NOT NULL,
    task_name        text             NOT NULL,
    completed        bigint           NOT NULL,
    failed           bigint           NOT NULL,
    cancelled        bigint           NOT NULL,
    expired          bigint           NOT NULL,
    wait_ms          bigint           NOT NULL,
    run_ms           bigint           NOT NULL,
    waits            bigint[]         NOT NULL,
    runs             bigint[]         NOT NULL,
    max_wait_seconds double precision,
    max_run_seconds  double precision,
    PRIMARY KEY (minute, queue_name, task_name)
);
CREATE INDEX horsies_rollups_minutes ON horsies_rollups (minute) WHERE queue_name = '';

-- The same counts since counting began. They only grow, whatever is deleted.
CREATE TABLE horsies_totals (
    queue_name text     NOT NULL,
    task_name  text     NOT NULL,
    completed  bigint   NOT NULL,
    failed     bigint   NOT NULL,
    cancelled  bigint   NOT NULL,
    expired    bigint   NOT NULL,
    wait_ms    bigint   NOT NULL,
    run_ms     bigint   NOT NULL,
    waits      bigint[] NOT NULL,
    runs       bigint[] NOT NULL,
    PRIMARY KEY (queue_name, task_name)
) WITH (fillfactor = 70);

-- The depth of each queue in each minute.
CREATE TABLE horsies_depths (
    minute                 timestamptz NOT NULL,
    queue_name             text        NOT NULL,
    pending                bigint      NOT NULL,
    scheduled              bigint      NOT NULL,
    running                bigint      NOT NULL,
    oldest_pending_seconds double precision,
    PRIMARY KEY (minute, queue_name)
);

-- Views ---------------------------------------------------------------------------------------------------------------

-- All attempts of all tasks.
CREATE VIEW horsies_task_attempts AS
SELECT task_id, attempt, outcome, requeued_at IS NULL AS will_retry, started_at, finished_at, error_code, error_message,
       failed_reason, worker_id, worker_hostname, worker_pid, worker_process_name, traceback, requeued_at
  FROM horsies_attempts
UNION ALL
SELECT id, earlier_attempts + retry_count + 1, CASE status WHEN 'COMPLETED' THEN 'COMPLETED' ELSE 'FAILED' END, false,
       started_at, terminal_at, error_code, result::json -> 'err' ->> 'message',
       failed_reason, claimed_by_worker_id, worker_hostname, worker_pid, worker_process_name,
       result::json -> 'err' -> 'exception' ->> 'traceback', NULL
  FROM horsies_tasks
 WHERE NOT live AND started_at IS NOT NULL AND status IN ('COMPLETED', 'FAILED', 'CANCELLED');

-- The result of each node. A task and its node end at the same moment, and that moment names the one history partition to
-- look into.
CREATE VIEW horsies_workflow_results AS
SELECT node.workflow_id, node.task_index, node.node_id, node.status, coalesce(node.result, task.result) AS result
  FROM horsies_workflow_tasks AS node
  LEFT JOIN LATERAL (SELECT ended.result FROM horsies_tasks AS ended
                      WHERE ended.id = node.task_id AND NOT ended.live AND ended.terminal_at = node.completed_at
                      LIMIT 1) AS task ON node.status IN ('COMPLETED', 'FAILED');

-- Functions that are inlined ------------------------------------------------------------------------------------------

-- PostgreSQL inlines these functions into the statements of their callers only if they have no search path of their own. So
-- they name the schema of every function and operator.

-- Return the channel that wakes the workers of a queue. A digest replaces a name that is too long for a channel.
CREATE FUNCTION horsies_queue_channel(queue_name text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT 'task_queue_'::pg_catalog.text OPERATOR(pg_catalog.||)
           CASE WHEN pg_catalog.octet_length(queue_name) OPERATOR(pg_catalog.<=) 52 THEN queue_name
                ELSE pg_catalog.md5(queue_name) END
$$;

-- Return the result of a node for the nodes after it. If there is no result, return an error that says why.
CREATE FUNCTION horsies_node_result(status text, result text, task_index integer) RETURNS json
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(result::pg_catalog.json, pg_catalog.json_build_object('err', pg_catalog.json_build_object(
        'error_code', pg_catalog.json_build_object('__builtin_task_code__',
            CASE WHEN status OPERATOR(pg_catalog.=) 'SKIPPED' THEN 'UPSTREAM_SKIPPED' ELSE 'RESULT_NOT_AVAILABLE' END),
        'message', CASE WHEN status OPERATOR(pg_catalog.=) 'SKIPPED' THEN 'the node before was skipped'
                        ELSE 'the result of the node before is not kept any more' END,
        'data', pg_catalog.json_build_object('dependency_index', task_index), 'exception', NULL)))
$$;

-- Return the bounds between which times are counted, in seconds.
CREATE FUNCTION horsies_time_bounds() RETURNS double precision[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ARRAY[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800]::pg_catalog.float8[]
$$;

-- Count the tasks in each place, from 0 to the number of bounds.
CREATE FUNCTION horsies_histogram(places integer[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT pg_catalog.array_agg(coalesce(counted.tasks, 0) ORDER BY bound.place)
      FROM pg_catalog.generate_series(0, 15) AS bound (place)
      LEFT JOIN (SELECT held.place, pg_catalog.count(*) AS tasks FROM pg_catalog.unnest(places) AS held (place)
                  GROUP BY held.place) AS counted
        ON counted.place OPERATOR(pg_catalog.=) bound.place
$$;

-- Add two histograms, or any number of them.
CREATE FUNCTION horsies_add(one bigint[], other bigint[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT pg_catalog.array_agg(a.of OPERATOR(pg_catalog.+) b.of ORDER BY a.place)
      FROM pg_catalog.unnest(one) WITH ORDINALITY AS a (of, place)
      LEFT JOIN pg_catalog.unnest(other) WITH ORDINALITY AS b (of, place)
        ON b.place OPERATOR(pg_catalog.=) a.place
$$;
CREATE AGGREGATE horsies_sum(bigint[]) (
    SFUNC = horsies_add, STYPE = bigint[], INITCOND = '{0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}', PARALLEL = SAFE
);

-- Functions with a search path ----------------------------------------------------------------------------------------

-- The search path of all other functions is `pg_catalog, pg_temp`. So PostgreSQL never considers an operator or a function
-- in a schema that others can write to, however well its arguments fit. Functions that use our tables must name the schema
-- of the tables, which is known only when this file is run: `{schema}` stands for it, and `{literal}` for the same within a
-- string.
--
-- SECURITY DEFINER functions act with the rights of the owner of the tables.
DO $migration$
DECLARE
    statement text;
BEGIN
FOREACH statement IN ARRAY ARRAY[

-- Create a history partition for each day from today on that has none, for a year at most; return their number.
-- Attaching a partition locks the default partition for a moment. While a session reads the default partition, all later
-- ones would wait for us. So the function gives up instead, and a later call creates the partition. A day that has rows in
-- the default partition stays there.
$function$
CREATE FUNCTION {schema}.horsies_prepare_history(days integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    today date := (now() AT TIME ZONE 'UTC')::date;
    part text;
    lower_end timestamptz;
    upper_end timestamptz;
    made integer := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock(7240118055) THEN
        RETURN 0;  -- another session is creating them
    END IF;
    FOR offset_days IN 0 .. least(days, 366) LOOP
        part := 'horsies_tasks_' || to_char(today + offset_days, 'YYYYMMDD');
        lower_end := (today + offset_days)::timestamp AT TIME ZONE 'UTC';
        upper_end := (today + offset_days + 1)::timestamp AT TIME ZONE 'UTC';
        CONTINUE WHEN to_regclass('{literal}.' || part) IS NOT NULL
            OR EXISTS (SELECT FROM {schema}.horsies_tasks_history_default
                        WHERE terminal_at >= lower_end AND terminal_at < upper_end);
        EXECUTE format('CREATE TABLE %1$s.%2$I (LIKE %1$s.horsies_tasks_history INCLUDING DEFAULTS INCLUDING CONSTRAINTS)',
                       '{literal}', part);
        EXECUTE format('ALTER TABLE %s.%I ADD CONSTRAINT %I PRIMARY KEY (id)', '{literal}', part, part || '_pkey');
        EXECUTE format('ALTER TABLE %1$s.horsies_tasks_history ATTACH PARTITION %1$s.%2$I FOR VALUES FROM (%3$L) TO (%4$L)',
                       '{literal}', part, lower_end, upper_end);
        made := made + 1;
    END LOOP;
    RETURN made;
EXCEPTION WHEN lock_not_available THEN
    RETURN 0;
END $$
$function$,

-- Drop the days of history that ended before this moment and at least an hour ago; return their number. Dropping a partition
-- locks all of history for a moment. While a session reads history, all later ones would wait for us. So the function gives
-- up instead, and a later call drops the partition.
$function$
CREATE FUNCTION {schema}.horsies_drop_history(before timestamptz) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    part text;
    dropped integer := 0;
BEGIN
    IF before IS NULL THEN
        RETURN 0;
    END IF;
    FOR part IN
        SELECT child.relname FROM pg_inherits AS link JOIN pg_class AS child ON child.oid = link.inhrelid
         WHERE link.inhparent = '{literal}.horsies_tasks_history'::regclass
           AND child.relname ~ '^horsies_tasks_\d{8}$'
           AND to_date(right(child.relname, 8), 'YYYYMMDD')::timestamp AT TIME ZONE 'UTC'
               <= least(before, now() - interval '1 hour') - interval '1 day'
         ORDER BY child.relname
    LOOP
        BEGIN
            EXECUTE format('DROP TABLE %s.%I', '{literal}', part);
            dropped := dropped + 1;
        EXCEPTION WHEN lock_not_available THEN
            RETURN dropped;
        END;
    END LOOP;
    RETURN dropped;
END $$
$function$,

-- Delete tasks that ended at least an hour ago, with their attempts, progress, log lines, steps and signals; return the number
-- of tasks. The moment at which each ended names its partition.
$function$
CREATE FUNCTION {schema}.horsies_delete_history(ids uuid[], ended timestamptz[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    deleted integer;
BEGIN
    WITH gone AS (
        DELETE FROM {schema}.horsies_tasks_history AS task
         USING unnest(ids, ended) AS old (id, terminal_at)
         WHERE task.id = old.id AND task.terminal_at = old.terminal_at AND old.terminal_at < now() - interval '1 hour'
        RETURNING task.id
    ), attempts AS (
        DELETE FROM {schema}.horsies_attempts AS attempt USING gone WHERE attempt.task_id = gone.id
    ), progress AS (
        DELETE FROM {schema}.horsies_progress AS progress USING gone WHERE progress.task_id = gone.id
    ), logs AS (
        DELETE FROM {schema}.horsies_task_logs AS line USING gone WHERE line.task_id = gone.id
    ), steps AS (
        DELETE FROM {schema}.horsies_steps AS step USING gone WHERE step.task_id = gone.id
    ), signals AS (
        DELETE FROM {schema}.horsies_signals AS signal USING gone WHERE signal.task_id = gone.id
    )
    SELECT count(*) INTO deleted FROM gone;
    RETURN deleted;
END $$
$function$,

-- Delete one batch of old rows of one kind, or clear one batch of old results; return their number. Whatever the caller
-- asks for, rows of the last hour stay, and so do actions of the last seven days and counts of the last two. What belongs to a
-- task stays as long as the task.
$function$
CREATE FUNCTION {schema}.horsies_forget(what text, before timestamptz, batch integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    until timestamptz := least(before, now() - CASE what WHEN 'actions' THEN interval '7 days'
                                                         WHEN 'counts' THEN interval '2 days'
                                                         ELSE interval '1 hour' END);
    kind record;
    forgotten integer;
BEGIN
    IF before IS NULL THEN
        RETURN 0;  -- keep everything
    END IF;
    CASE what
    WHEN 'results' THEN
        WITH old AS (
            SELECT id, terminal_at FROM {schema}.horsies_tasks_history
             WHERE terminal_at < until AND result IS NOT NULL
             LIMIT batch FOR UPDATE SKIP LOCKED
        )
        UPDATE {schema}.horsies_tasks AS task SET result = NULL FROM old
         WHERE NOT task.live AND task.id = old.id AND task.terminal_at = old.terminal_at;
    WHEN 'workflows' THEN
        WITH RECURSIVE tree AS (
            (SELECT id FROM {schema}.horsies_workflows
              WHERE completed_at < until AND parent_workflow_id IS NULL AND open_tasks = 0
              LIMIT batch)
            UNION ALL
            SELECT part.id FROM tree JOIN {schema}.horsies_workflows AS part ON part.parent_workflow_id = tree.id
        ), nodes AS (
            DELETE FROM {schema}.horsies_workflow_tasks AS node USING tree WHERE node.workflow_id = tree.id
        )
        DELETE FROM {schema}.horsies_workflows AS flow USING tree WHERE flow.id = tree.id;
    WHEN 'counts' THEN
        WITH rollups AS (
            DELETE FROM {schema}.horsies_rollups WHERE minute < until
        )
        DELETE FROM {schema}.horsies_depths WHERE minute < until;
    ELSE
        SELECT * INTO STRICT kind
          FROM (VALUES ('attempts', 'horsies_attempts', 'finished_at', true),
                       ('progress', 'horsies_progress', 'at', true),
                       ('logs', 'horsies_task_logs', 'at', true),
                       ('steps', 'horsies_steps', 'started_at', true),
                       ('signals', 'horsies_signals', 'sent_at', true),
                       ('keys', 'horsies_idempotency_keys', 'created_at', true),
                       ('actions', 'horsies_actions', 'acted_at', false),
                       ('states', 'horsies_worker_states', 'snapshot_at', false),
                       ('heartbeats', 'horsies_heartbeats', 'sent_at', false)) AS known (name, relation, age, is_of_task)
         WHERE name = what;
        EXECUTE format('DELETE FROM %1$s.%2$I WHERE ctid = ANY (ARRAY(
                            SELECT ctid FROM %1$s.%2$I AS old WHERE %3$I < $1 %4$s ORDER BY %3$I LIMIT $2
                               FOR UPDATE SKIP LOCKED))',
                       '{literal}', kind.relation, kind.age,
                       CASE WHEN kind.is_of_task
                            THEN 'AND NOT EXISTS (SELECT FROM {literal}.horsies_tasks WHERE id = old.task_id)' END)
          USING until, batch;
    END CASE;
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten;
END $$
$function$,

-- Summarise the pages of history that were written last; return the number of new ranges. The index horsies_tasks_ended
-- knows the times of summarised pages only. Without this, the others wait for a vacuum, and a query for the last minutes
-- reads everything that was written since.
$function$
CREATE FUNCTION {schema}.horsies_summarize_history() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    part regclass;
    summarized integer := 0;
BEGIN
    FOR part IN
        SELECT link.inhrelid::regclass FROM pg_inherits AS link
         WHERE link.inhparent = '{literal}.horsies_tasks_ended'::regclass
    LOOP
        summarized := summarized + brin_summarize_new_values(part);
    END LOOP;
    RETURN summarized;
EXCEPTION WHEN lock_not_available THEN
    RETURN summarized;
END $$
$function$,

-- Analyse the live table if its statistics are out of date; return true if they were. A plan that was made while the table
-- was empty walks over all of it. It is kept until autovacuum analyses the table, within a minute or so. A worker that finds
-- itself slow calls this function instead, and everyone gets new plans.
$function$
CREATE FUNCTION {schema}.horsies_refresh_statistics() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known record;
BEGIN
    SELECT relpages, reltuples INTO known FROM pg_class WHERE oid = '{literal}.horsies_tasks_live'::regclass;
    IF pg_relation_size('{literal}.horsies_tasks_live') / current_setting('block_size')::integer <= 2 * known.relpages + 10
       AND known.reltuples > known.relpages THEN
        RETURN false;
    END IF;
    IF NOT pg_try_advisory_xact_lock(7240118058) THEN
        RETURN false;  -- another session is doing it
    END IF;
    ANALYZE {schema}.horsies_tasks_live;
    RETURN true;
END $$
$function$,

-- Refuse to change a task that has ended. A role that may update the live table reaches history through horsies_tasks, so
-- the trigger asks for a right on history itself. Roles with that right may send a failed task again and clear a result.
$function$
CREATE FUNCTION {schema}.horsies_guard_final() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT has_any_column_privilege('{literal}.horsies_tasks_history', 'UPDATE') THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('permission denied to change task %s, which is %s', OLD.id, OLD.status),
            HINT = 'An operator may send a failed task again or clear its result.';
    END IF;
    IF NOT (OLD.status = 'FAILED' AND NEW.status = 'PENDING')
       AND (NEW.status <> OLD.status OR NEW.error_code IS DISTINCT FROM OLD.error_code
            OR (NEW.result IS NOT NULL AND NEW.result IS DISTINCT FROM OLD.result)) THEN
        RAISE EXCEPTION 'task % is % and final', OLD.id, OLD.status USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$
$function$,

-- Refuse rows that cannot be tasks, and wake workers that wait for one. A transaction that notifies waits in line with every
-- other one until its commit is on disk. So the trigger notifies a queue only if a worker of that queue sleeps, and once for
-- each queue of the statement.
--
-- This function and horsies_send also run in sessions of other programs. If such a session disables a kind of scan, the plan
-- of the trigger costs more than `jit_above_cost`, and up to PostgreSQL 17 every send would compile it. Hence `jit = off`.
$function$
CREATE FUNCTION {schema}.horsies_notify_new() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    PERFORM CASE WHEN fault IS NOT NULL THEN {schema}.horsies_refuse(fault)
                 ELSE pg_notify({schema}.horsies_queue_channel(queue_name), id) END,
            pg_notify('task_new', id)
       FROM (SELECT queue_name, min(id::text) AS id, bool_or(is_async) AS has_async, bool_or(NOT is_async) AS has_plain,
                    min(CASE WHEN priority NOT BETWEEN 1 AND 100
                             THEN format('the priority of task %s is %s; it must be from 1 to 100', id, priority)
                             WHEN length(task_name) NOT BETWEEN 1 AND 255
                             THEN format('the name of task %s has %s characters; it must have 1 to 255', id, length(task_name))
                             WHEN length(queue_name) NOT BETWEEN 1 AND 100
                             THEN format('the queue of task %s has a name of %s characters; it must have 1 to 100', id,
                                         length(queue_name))
                             WHEN CASE WHEN live THEN status NOT IN ('PENDING', 'CLAIMED', 'RUNNING')
                                       ELSE status NOT IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED') END
                             THEN format('the status of task %s is %s, which does not go with live = %s', id, status, live) END)
                        AS fault
               FROM added GROUP BY queue_name) AS touched
      WHERE fault IS NOT NULL
         OR EXISTS (SELECT FROM {schema}.horsies_workers AS worker
                     WHERE (worker.waiting AND has_plain OR worker.waiting_async AND has_async)
                       AND worker.lease_expires_at > now() AND touched.queue_name = ANY (worker.queues));
    RETURN NULL;
END $$
$function$,

-- Return the lane of a task that SQL sends: that of its key, or of its rate limit. Return NULL if the key is not among
-- the arguments.
$function$
CREATE FUNCTION {schema}.horsies_lane(known {schema}.horsies_task_definitions, kwargs jsonb) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF known.key_source IS NULL THEN
        RETURN coalesce(known.rate_key, '');
    END IF;
    IF jsonb_typeof(kwargs -> known.key_source) IN ('string', 'number')
       AND length(kwargs ->> known.key_source) BETWEEN 1 AND 200 THEN
        RETURN 'key=' || (kwargs ->> known.key_source);
    END IF;
    RETURN NULL;
END $$
$function$,

-- Send a task from plain SQL, a trigger or another language: SELECT horsies_send('task', '{"x": 1}').
$function$
CREATE FUNCTION {schema}.horsies_send(
    task_name text, kwargs jsonb DEFAULT '{}', queue_name text DEFAULT NULL, priority integer DEFAULT NULL,
    delay_seconds double precision DEFAULT 0, good_until timestamptz DEFAULT NULL, idempotency_key text DEFAULT NULL,
    key text DEFAULT NULL, unique_key text DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
    wanted_id uuid := {schema}.horsies_new_id();
    sha text := encode(sha256(convert_to(horsies_send.task_name || kwargs::text, 'UTF8')), 'hex');
    known {schema}.horsies_task_definitions;
    taken {schema}.horsies_idempotency_keys;
    lane text;
BEGIN
    IF jsonb_typeof(horsies_send.kwargs) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'horsies_send: kwargs must be a JSON object of arguments by name, not %',
            coalesce(jsonb_typeof(horsies_send.kwargs), 'NULL') USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF horsies_send.delay_seconds < 0 THEN
        RAISE EXCEPTION 'horsies_send: delay_seconds must not be negative, it is %', horsies_send.delay_seconds
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO known FROM {schema}.horsies_task_definitions WHERE task_name = horsies_send.task_name;
    IF length(horsies_send.key) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION 'horsies_send: the key has % characters; a key has 1 to 200', length(horsies_send.key)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    lane := coalesce('key=' || horsies_send.key, {schema}.horsies_lane(known, horsies_send.kwargs));
    IF lane IS NULL THEN
        RAISE EXCEPTION 'horsies_send: the key of task % is not known here', quote_literal(horsies_send.task_name)
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = CASE known.key_source WHEN '()' THEN 'A Python function computes it. Pass key => ''…''.'
                         ELSE format('Pass %s in kwargs, as a text of 1 to 200 characters or a whole number, or pass key => ''…''.',
                                     quote_literal(known.key_source)) END;
    END IF;
    IF length(horsies_send.unique_key) NOT BETWEEN 1 AND 500
       OR horsies_send.unique_key IS NOT NULL AND horsies_send.idempotency_key IS NOT NULL THEN
        RAISE EXCEPTION 'horsies_send: a unique_key has 1 to 500 characters, and stands without an idempotency_key'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF horsies_send.idempotency_key IS NOT NULL THEN
        INSERT INTO {schema}.horsies_idempotency_keys (idempotency_key, task_id, enqueue_sha)
        VALUES (horsies_send.idempotency_key, wanted_id, sha)
        ON CONFLICT (idempotency_key) DO NOTHING;
        IF NOT FOUND THEN
            SELECT * INTO taken FROM {schema}.horsies_idempotency_keys
             WHERE idempotency_key = horsies_send.idempotency_key;
            IF taken.enqueue_sha <> sha THEN
                RAISE EXCEPTION 'horsies_send: the idempotency key % belongs to another call',
                    quote_literal(horsies_send.idempotency_key) USING ERRCODE = 'unique_violation';
            END IF;
            RETURN taken.task_id;
        END IF;
    END IF;
    IF horsies_send.unique_key IS NOT NULL THEN
        wanted_id := {schema}.horsies_debounce(json_build_object(
            'id', wanted_id, 'task_name', horsies_send.task_name,
            'queue_name', coalesce(horsies_send.queue_name, known.queue_name, 'default'),
            'priority', coalesce(horsies_send.priority, known.priority, 100), 'is_async', coalesce(known.is_async, false),
            'max_retries', coalesce(known.max_retries, 0), 'timeout_ms', known.timeout_ms,
            'task_options', known.task_options, 'rate_key', lane, 'kwargs', horsies_send.kwargs::text,
            'delay_seconds', horsies_send.delay_seconds, 'good_until', horsies_send.good_until,
            'unique_key', horsies_send.task_name || ':' || horsies_send.unique_key), coalesce(known.on_conflict, 'first'));
        PERFORM pg_notify({schema}.horsies_queue_channel(coalesce(horsies_send.queue_name, known.queue_name, 'default')), '');
        RETURN wanted_id;
    END IF;
    INSERT INTO {schema}.horsies_tasks (id, task_name, queue_name, priority, is_async, max_retries, timeout_ms,
                                        task_options, rate_key, kwargs, enqueued_at, good_until)
    VALUES (wanted_id, horsies_send.task_name,
            coalesce(horsies_send.queue_name, known.queue_name, 'default'), coalesce(horsies_send.priority, known.priority, 100),
            coalesce(known.is_async, false), coalesce(known.max_retries, 0), known.timeout_ms, known.task_options,
            lane, horsies_send.kwargs::text, now() + make_interval(secs => coalesce(horsies_send.delay_seconds, 0)),
            horsies_send.good_until);
    -- Notify even if no worker sleeps: this transaction may commit long after the insert trigger looked for one.
    PERFORM pg_notify({schema}.horsies_queue_channel(coalesce(horsies_send.queue_name, known.queue_name, 'default')), '');
    RETURN wanted_id;
END $$
$function$,

-- Send a task with a unique key; return its id, or that of the task that stands for it. If no live task has the key, the task
-- is stored. Otherwise, `on_conflict` decides:
--
-- - first: the task that has the key stands for this one.
-- - again: so does a task of the key that has not begun. If it has begun, this task follows it, and starts when it has ended.
-- - last: the same, and a task that has not begun takes the arguments, the due time and the options of this one.
--
-- The unique indexes decide, on `unique_key` and on `follows`, not a look beforehand. The lock on a task that stands for this one
-- keeps it from starting until the transaction ends, so that it sees what the transaction has written. A task that runs is never
-- locked for longer than a moment: the block rolls a lock back that came too late, after a worker had claimed the task. With ON
-- CONFLICT DO UPDATE, an open transaction would keep a task that runs from being settled.
$function$
CREATE FUNCTION {schema}.horsies_debounce(task json, on_conflict text) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
    given record;
    due timestamptz;
    stored uuid;
BEGIN
    SELECT * INTO STRICT given FROM json_to_record(task) AS row (
        id uuid, task_name text, queue_name text, is_async boolean, priority smallint, kwargs text, eta timestamptz,
        delay_seconds double precision, good_until timestamptz, timeout_ms integer, max_retries smallint, task_options text,
        unique_key text, tags text[], rate_key text, cost real);
    due := coalesce(given.eta, now() + make_interval(secs => coalesce(given.delay_seconds, 0)));
    FOR tries IN 1 .. 1000 LOOP
        INSERT INTO {schema}.horsies_tasks_live (
               id, task_name, queue_name, is_async, priority, kwargs, enqueued_at, good_until, timeout_ms, max_retries,
               task_options, unique_key, tags, rate_key, cost)
        SELECT given.id, given.task_name, given.queue_name, given.is_async, given.priority, given.kwargs, due, given.good_until,
               given.timeout_ms, given.max_retries, given.task_options, given.unique_key, given.tags,
               coalesce(given.rate_key, ''), given.cost
         WHERE horsies_debounce.on_conflict = 'first'
            OR NOT EXISTS (SELECT FROM {schema}.horsies_tasks_live WHERE follows = given.unique_key)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN given.id;
        END IF;
        -- A send that is repeated because its reply was lost.
        SELECT id INTO stored FROM {schema}.horsies_tasks_live WHERE id = given.id;
        IF NOT FOUND AND horsies_debounce.on_conflict = 'first' THEN
            SELECT id INTO stored FROM {schema}.horsies_tasks_live WHERE unique_key = given.unique_key;
        END IF;
        IF FOUND THEN
            RETURN stored;
        END IF;
        CONTINUE WHEN horsies_debounce.on_conflict = 'first';
        BEGIN
            stored := {schema}.horsies_join(given.unique_key, CASE WHEN horsies_debounce.on_conflict = 'last' THEN task END, due);
            IF stored IS NOT NULL THEN
                RETURN stored;
            END IF;
            RAISE SQLSTATE 'HR001';
        EXCEPTION WHEN SQLSTATE 'HR001' OR serialization_failure THEN
            -- There is none that has not begun, or a worker was faster: with the block, its locks are undone.
        END;
        INSERT INTO {schema}.horsies_tasks_live (
               id, task_name, queue_name, is_async, priority, kwargs, enqueued_at, good_until, timeout_ms, max_retries,
               task_options, follows, parked_at, tags, rate_key, cost)
        SELECT given.id, given.task_name, given.queue_name, given.is_async, given.priority, given.kwargs, due, given.good_until,
               given.timeout_ms, given.max_retries, given.task_options, given.unique_key, now(), given.tags,
               coalesce(given.rate_key, ''), given.cost
         WHERE EXISTS (SELECT FROM {schema}.horsies_tasks_live WHERE unique_key = given.unique_key)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN given.id;
        END IF;
    END LOOP;
    RAISE serialization_failure USING MESSAGE = format('other sends of %s were faster all the time', given.unique_key);
END $$
$function$,

-- Find the task of a unique key that has not begun, and lock it; return its id. Given a newer task, it takes its arguments, due
-- time and options, and its retries begin anew. A task that waits for a retry has begun only if it has stored a step. Only a task
-- that was sent with an `on_conflict` is changed: the rights of a sender do not reach other tasks. The pattern cannot match within
-- a JSON string, where quotes are escaped.
$function$
CREATE FUNCTION {schema}.horsies_join(key text, newer json, due timestamptz) RETURNS uuid
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
    waiting record;
BEGIN
    -- The update makes the trigger horsies_tasks_follow fire at the commit.
    UPDATE {schema}.horsies_tasks_live AS task SET kwargs = task.kwargs
     WHERE task.follows = horsies_join.key AND task.status = 'PENDING'
    RETURNING task.id, task.enqueued_at, task.queue_name INTO waiting;
    IF NOT FOUND AND newer IS NULL THEN
        SELECT task.id, task.enqueued_at, task.queue_name INTO waiting FROM {schema}.horsies_tasks_live AS task
         WHERE task.unique_key = horsies_join.key AND task.status = 'PENDING' AND task.parked_at IS NULL
           AND NOT EXISTS (SELECT FROM {schema}.horsies_steps AS step WHERE step.task_id = task.id)
           FOR KEY SHARE OF task;
    ELSIF NOT FOUND THEN
        SELECT task.id, task.enqueued_at, task.queue_name INTO waiting FROM {schema}.horsies_tasks_live AS task
         WHERE task.unique_key = horsies_join.key AND task.status = 'PENDING' AND task.parked_at IS NULL
           AND task.task_name = newer ->> 'task_name' AND task.task_options LIKE '%"on_conflict":"%'
           AND NOT EXISTS (SELECT FROM {schema}.horsies_steps AS step WHERE step.task_id = task.id)
           FOR NO KEY UPDATE OF task;
    END IF;
    IF waiting.id IS NULL OR newer IS NULL THEN
        RETURN waiting.id;
    END IF;
    UPDATE {schema}.horsies_tasks_live AS task
       SET task_name = given.task_name, queue_name = given.queue_name, is_async = given.is_async, priority = given.priority,
           args = NULL, kwargs = given.kwargs, enqueued_at = due, good_until = given.good_until, timeout_ms = given.timeout_ms,
           max_retries = given.max_retries, task_options = given.task_options, tags = given.tags,
           rate_key = coalesce(given.rate_key, ''), cost = given.cost, next_retry_at = NULL, crash_count = 0,
           earlier_attempts = least(task.earlier_attempts::integer + task.retry_count, 32767), retry_count = 0,
           unknown_since = NULL, unknown_until = NULL
      FROM json_to_record(newer) AS given (
           task_name text, queue_name text, is_async boolean, priority smallint, kwargs text, good_until timestamptz,
           timeout_ms integer, max_retries smallint, task_options text, tags text[], rate_key text, cost real)
     WHERE task.id = waiting.id;
    IF due < waiting.enqueued_at OR waiting.queue_name <> newer ->> 'queue_name' THEN
        PERFORM pg_notify({schema}.horsies_queue_channel(newer ->> 'queue_name'), '');
    END IF;
    RETURN waiting.id;
END $$
$function$,

-- Let the task start that follows the one of this key, or every such task, if no live task has the key any more; return how
-- many. A locked one is skipped: the sender that has locked it calls this function when it commits.
$function$
CREATE FUNCTION {schema}.horsies_follow(key text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '100ms' AS $$
DECLARE
    ended_key text;
    queue text;
    started integer := 0;
BEGIN
    FOREACH ended_key IN ARRAY CASE WHEN key IS NOT NULL THEN ARRAY[key] ELSE ARRAY (
        SELECT task.follows FROM {schema}.horsies_tasks_live AS task
         WHERE task.follows IS NOT NULL
           AND NOT EXISTS (SELECT FROM {schema}.horsies_tasks_live AS before WHERE before.unique_key = task.follows)
         LIMIT 1000) END
    LOOP
        BEGIN
            UPDATE {schema}.horsies_tasks_live SET unique_key = follows, follows = NULL, parked_at = NULL
             WHERE id = (SELECT task.id FROM {schema}.horsies_tasks_live AS task
                          WHERE task.follows = ended_key AND task.status = 'PENDING'
                            AND NOT EXISTS (SELECT FROM {schema}.horsies_tasks_live AS before
                                             WHERE before.unique_key = ended_key)
                            FOR UPDATE OF task SKIP LOCKED)
            RETURNING queue_name INTO queue;
            IF FOUND THEN
                PERFORM pg_notify({schema}.horsies_queue_channel(queue), '');
                started := started + 1;
            END IF;
        EXCEPTION WHEN unique_violation OR lock_not_available THEN
            -- Another task has taken the key, or is about to: this one follows that one.
        END;
    END LOOP;
    RETURN started;
END $$
$function$,

-- A task with a unique key has ended: let the one start that follows it.
$function$
CREATE FUNCTION {schema}.horsies_unique_ended() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    IF EXISTS (SELECT FROM {schema}.horsies_tasks_live WHERE follows = NEW.unique_key) THEN
        PERFORM {schema}.horsies_follow(NEW.unique_key);
    END IF;
    RETURN NULL;
END $$
$function$,

-- A transaction that has stored or changed a task that follows another one commits. Either the lock comes first, and whoever
-- ends the other task waits for this commit and then finds the follower, or the other task has ended, and the follower starts.
$function$
CREATE FUNCTION {schema}.horsies_follower_sent() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    BEGIN
        PERFORM FROM {schema}.horsies_tasks_live WHERE unique_key = NEW.follows FOR KEY SHARE;
        IF FOUND THEN
            RETURN NULL;
        END IF;
    EXCEPTION WHEN serialization_failure THEN
        -- It has just ended.
    END;
    PERFORM {schema}.horsies_follow(NEW.follows);
    RETURN NULL;
END $$
$function$,

-- Let parked tasks go on: workers may claim them at once.
$function$
CREATE FUNCTION {schema}.horsies_wake(ids uuid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    queues bigint;
BEGIN
    WITH woken AS (
        UPDATE {schema}.horsies_tasks_live AS task SET parked_at = NULL, enqueued_at = now()
         WHERE task.id = ANY (ids) AND task.parked_at IS NOT NULL AND task.follows IS NULL AND task.status = 'PENDING'
        RETURNING task.queue_name
    )
    -- Notify even if no worker sleeps: this transaction may commit long after the workers were looked for.
    SELECT count(pg_notify({schema}.horsies_queue_channel(queue_name), '')) INTO queues
      FROM (SELECT DISTINCT queue_name FROM woken) AS touched;
END $$
$function$,

-- Give a task a signal: a JSON value under a name. A task that waits for it goes on; for any other, the signal is kept until it
-- waits. Return false if the task has ended, or has had a signal of this name or waited for it too long; NULL if there is no
-- such task. The lock makes a task that is about to wait for the signal see it: parking a task locks its row for update.
-- Steps that are being stored do not stop a signal.
$function$
CREATE FUNCTION {schema}.horsies_signal(task_id uuid, name text, value json DEFAULT 'null') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
    parked timestamptz;
BEGIN
    SELECT task.parked_at INTO parked FROM {schema}.horsies_tasks_live AS task
     WHERE task.id = horsies_signal.task_id AND task.status IN ('PENDING', 'CLAIMED', 'RUNNING') FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN CASE WHEN EXISTS (SELECT FROM {schema}.horsies_tasks AS task WHERE task.id = horsies_signal.task_id)
                    THEN false END;
    END IF;
    IF EXISTS (SELECT FROM {schema}.horsies_steps AS step
                WHERE step.task_id = horsies_signal.task_id AND step.name = horsies_signal.name
                  AND step.kind = 'wait' AND step.ended_at IS NOT NULL) THEN
        RETURN false;
    END IF;
    INSERT INTO {schema}.horsies_signals (task_id, name, value)
    VALUES (horsies_signal.task_id, horsies_signal.name, horsies_signal.value::text) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF parked IS NOT NULL THEN
        UPDATE {schema}.horsies_steps AS step SET ended_at = now(), result = '{"ok":' || horsies_signal.value::text || '}'
         WHERE step.task_id = horsies_signal.task_id AND step.name = horsies_signal.name
           AND step.kind = 'wait' AND step.ended_at IS NULL;
        IF FOUND THEN
            PERFORM {schema}.horsies_wake(ARRAY[horsies_signal.task_id]);
        END IF;
    END IF;
    RETURN true;
END $$
$function$,

-- Count the end of a task that another task has called. With the last one, the caller goes on.
$function$
CREATE FUNCTION {schema}.horsies_call_ended() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    remaining integer;
BEGIN
    UPDATE {schema}.horsies_steps AS step SET open_calls = step.open_calls - 1
     WHERE step.task_id = NEW.parent_id AND step.name = NEW.parent_step AND step.ended_at IS NULL
       AND step.open_calls > 0 AND NEW.id = ANY (step.calls)
    RETURNING step.open_calls INTO remaining;
    IF remaining = 0 THEN
        PERFORM {schema}.horsies_wake(ARRAY[NEW.parent_id]);
    END IF;
    RETURN NULL;
END $$
$function$,

-- Return a fault in the rows of a workflow, or NULL if there is none. The flow with this id is a root, or is built for a node
-- of another workflow. All other flows must be parts of it. A workflow that passes cannot touch another one, and a worker can
-- carry it out. Joins are hashed, because the planner does not know how long the arrays are.
$function$
CREATE FUNCTION {schema}.horsies_workflow_fault(
    flow_id uuid, flows {schema}.horsies_workflows[], nodes {schema}.horsies_workflow_tasks[], parent_id uuid,
    parent_index integer
) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_nestloop = off AS $$
#variable_conflict use_variable
DECLARE
    century CONSTANT double precision := 36525 * 86400.0;
    above {schema}.horsies_workflows;
    fault text;
BEGIN
    IF parent_id IS NOT NULL THEN
        SELECT flow.* INTO above FROM {schema}.horsies_workflows AS flow
          JOIN {schema}.horsies_workflow_tasks AS node ON node.workflow_id = flow.id
         WHERE flow.id = parent_id AND node.workflow_id = parent_id AND node.task_index = parent_index
           AND node.kind = 'workflow' AND node.sub_workflow_id IS NULL;
        IF above.id IS NULL THEN
            RETURN 'there is no node that waits for it';
        END IF;
    END IF;

    SELECT concat('workflow ', flow.id, ': ', checked.fault) INTO fault
      FROM unnest(flows) AS flow
      LEFT JOIN unnest(flows) AS parent ON parent.id = flow.parent_workflow_id
      LEFT JOIN unnest(nodes) AS node
        ON node.workflow_id = flow.parent_workflow_id AND node.task_index = flow.parent_task_index
       AND node.sub_workflow_id = flow.id AND node.kind = 'workflow'
      LEFT JOIN (SELECT member.workflow_id, count(*) AS nodes FROM unnest(nodes) AS member GROUP BY member.workflow_id)
             AS counted ON counted.workflow_id = flow.id
     CROSS JOIN LATERAL (SELECT CASE
             WHEN NOT coalesce(CASE
                      WHEN flow.id <> flow_id
                      THEN parent.root_workflow_id = flow.root_workflow_id AND flow.depth = parent.depth + 1
                           AND node.task_index IS NOT NULL
                           AND flow.status = CASE WHEN parent.status = 'RUNNING' AND node.open_deps = 0 THEN 'RUNNING'
                                                  ELSE 'PENDING' END
                      WHEN parent_id IS NULL
                      THEN flow.parent_workflow_id IS NULL AND flow.parent_task_index IS NULL
                           AND flow.root_workflow_id = flow.id AND flow.depth = 0 AND flow.status = 'RUNNING'
                      ELSE flow.parent_workflow_id = parent_id AND flow.parent_task_index = parent_index
                           AND flow.root_workflow_id = above.root_workflow_id AND flow.depth = above.depth + 1
                           AND flow.status = 'PENDING' END, false)
             THEN 'its root, parent, depth or status is not that of its place'
             WHEN flow.on_error NOT IN ('FAIL', 'PAUSE') THEN 'on_error is not FAIL or PAUSE'
             WHEN NOT (flow.deadline_seconds > 0 AND flow.deadline_seconds <= century)
             THEN 'deadline_seconds must be above 0 and at most a century'
             WHEN counted.nodes IS NULL OR counted.nodes <> flow.open_tasks THEN 'open_tasks must be the number of nodes'
             WHEN NOT (flow.output_task_index >= 0 AND flow.output_task_index < counted.nodes)
             THEN 'output_task_index is not the index of a node'
             -- A success policy names its nodes in JSON: {"cases": [{"required_indices": [0, 1]}]}.
             WHEN flow.success_policy IS NOT NULL
                  AND NOT CASE WHEN json_typeof(flow.success_policy::json -> 'cases') = 'array' THEN
                          NOT EXISTS (
                              SELECT FROM json_array_elements(flow.success_policy::json -> 'cases') AS policy (case_)
                               WHERE NOT CASE WHEN json_typeof(policy.case_ -> 'required_indices') = 'array' THEN
                                   NOT EXISTS (
                                       SELECT FROM json_array_elements_text(policy.case_ -> 'required_indices')
                                                   AS required (index)
                                        WHERE NOT CASE WHEN required.index ~ '^\d{1,9}$'
                                                       THEN required.index::integer < counted.nodes ELSE false END)
                                   ELSE false END)
                          ELSE false END
             THEN 'a case of the success policy does not list indices of nodes' END) AS checked (fault)
     WHERE checked.fault IS NOT NULL
     LIMIT 1;
    IF fault IS NOT NULL THEN
        RETURN fault;
    END IF;

    SELECT concat('node ', node.task_index, ' of workflow ', node.workflow_id, ': ', checked.fault) INTO fault
      FROM unnest(nodes) AS node
      LEFT JOIN unnest(flows) AS flow ON flow.id = node.workflow_id
      LEFT JOIN unnest(flows) AS child ON child.id = node.sub_workflow_id
     CROSS JOIN LATERAL (SELECT CASE
             WHEN flow.id IS NULL THEN 'it belongs to another workflow'
             WHEN node.task_index < 0 OR node.task_index >= flow.open_tasks
             THEN 'indices must count the nodes from 0'
             WHEN NOT coalesce(0 <= ALL (node.dependencies) AND flow.open_tasks > ALL (node.dependencies)
                               AND 0 <= ALL (node.dependents) AND flow.open_tasks > ALL (node.dependents)
                               AND coalesce(node.workflow_ctx_from, '{}') <@ node.dependencies
                               AND 1 = coalesce(array_ndims(node.dependencies), 1)
                               AND 1 = coalesce(array_ndims(node.dependents), 1)
                               AND 1 = coalesce(array_ndims(node.workflow_ctx_from), 1), false)
             THEN 'it depends on a node outside of its workflow'
             WHEN node.open_deps <> cardinality(node.dependencies)
                  OR node.open_sources <> CASE WHEN node.join_type = 'all' THEN 0
                                               ELSE coalesce(cardinality(node.workflow_ctx_from), 0) END
             THEN 'it miscounts what it waits for'
             WHEN node.status <> CASE WHEN node.open_deps > 0 THEN 'PENDING' WHEN flow.status = 'PENDING' THEN 'READY'
                                      WHEN node.kind = 'task' THEN 'ENQUEUED' ELSE 'RUNNING' END
             THEN 'status ' || node.status || ' is not the one it starts with'
             WHEN NOT coalesce(CASE node.join_type WHEN 'all' THEN node.min_success IS NULL
                                                   WHEN 'any' THEN node.open_deps > 0 AND node.min_success = 1
                                                   WHEN 'quorum' THEN node.min_success BETWEEN 1 AND node.open_deps END,
                               false)
             THEN 'join_type and min_success do not fit'
             WHEN NOT (node.seconds > 0 AND node.seconds <= century) OR node.kind = 'sleep' AND node.seconds IS NULL
             THEN 'seconds must be above 0 and at most a century'
             WHEN node.seconds IS NOT NULL AND node.kind NOT IN ('sleep', 'signal')
             THEN 'only a sleep or a signal has seconds'
             WHEN length(node.task_name) NOT BETWEEN 1 AND 255 OR length(node.node_id) NOT BETWEEN 1 AND 255
             THEN 'its name and its id must have 1 to 255 characters'
             WHEN (node.queue_name IS NOT NULL) <> (node.kind IN ('task', 'map') OR node.task_id IS NOT NULL)
                  OR length(node.queue_name) NOT BETWEEN 1 AND 100
             THEN 'its queue must have a name of 1 to 100 characters'
             WHEN node.queue_name IS NOT NULL AND NOT coalesce(node.priority BETWEEN 1 AND 100, false)
             THEN 'priority must be from 1 to 100'
             WHEN node.max_retries < 0 OR node.timeout_ms <= 0
             THEN 'max_retries and timeout_ms must not be negative'
             WHEN node.task_options IS NOT NULL
                  AND NOT CASE WHEN json_typeof(node.task_options::json) = 'object'
                               THEN coalesce(json_typeof(node.task_options::json -> 'has_inputs'), 'boolean') = 'boolean'
                               ELSE false END
             THEN 'task_options is not an object of options'
             WHEN node.kind = 'map' AND json_typeof(coalesce(node.task_kwargs, '{}')::json) <> 'object'
             THEN 'task_kwargs is not an object of arguments'
             WHEN json_typeof(node.args_from) <> 'object' THEN 'args_from is not an object'
             WHEN node.args_from IS NOT NULL
                  AND EXISTS (SELECT FROM json_each_text(node.args_from) AS arg
                               WHERE NOT coalesce(CASE WHEN arg.value ~ '^\d{1,9}$'
                                                       THEN arg.value::integer = ANY (node.dependencies) END, false))
                  OR node.kind = 'map'
                     AND 1 <> (SELECT count(*) FROM json_each_text(coalesce(node.args_from, '{}')))
             THEN 'args_from must name nodes that it waits for'
             WHEN NOT CASE node.kind
                      WHEN 'task' THEN node.task_id IS NOT NULL AND node.sub_workflow_id IS NULL
                      WHEN 'workflow' THEN CASE WHEN node.task_id IS NULL THEN child.id IS NOT NULL
                                                ELSE node.sub_workflow_id IS NULL AND node.open_deps > 0
                                                     AND node.task_name = 'horsies:build_workflow' END
                      ELSE node.task_id IS NULL AND node.sub_workflow_id IS NULL END
             THEN 'it has a task or a workflow that does not fit its kind' END) AS checked (fault)
     WHERE checked.fault IS NOT NULL
     LIMIT 1;
    IF fault IS NOT NULL THEN
        RETURN fault;
    END IF;

    SELECT CASE
        WHEN (SELECT count(member.id) <> count(DISTINCT member.id)
                FROM (SELECT coalesce(node.task_id, node.sub_workflow_id) AS id FROM unnest(nodes) AS node) AS member)
        THEN 'two nodes have the same task or workflow'
        -- Each dependency of a node must be listed among the dependents of the other node, and as often.
        WHEN EXISTS (
            SELECT FROM (SELECT node.workflow_id, before.index AS before, node.task_index AS after, 1 AS times
                           FROM unnest(nodes) AS node CROSS JOIN LATERAL unnest(node.dependencies) AS before (index)
                          UNION ALL
                         SELECT node.workflow_id, node.task_index, after.index, -1
                           FROM unnest(nodes) AS node CROSS JOIN LATERAL unnest(node.dependents) AS after (index)) AS edge
             GROUP BY edge.workflow_id, edge.before, edge.after
            HAVING sum(edge.times) <> 0)
        THEN 'the dependencies and the dependents of the nodes do not fit together' END INTO fault;
    RETURN fault;
END $$
$function$,

-- Store a workflow with all its parts and send the tasks that can begin; return false if its id is taken. The workflow is a
-- root, or was built for a node of another one. The function refuses a workflow that does not fit.
$function$
CREATE FUNCTION {schema}.horsies_store_workflow(
    flow_id uuid, flows json, nodes json, parent_id uuid, parent_index integer
) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    new_flows {schema}.horsies_workflows[];
    new_nodes {schema}.horsies_workflow_tasks[];
    blank {schema}.horsies_workflow_tasks;
    fault text;
    stored bigint;
BEGIN
    blank.open_deps := 0;
    blank.open_sources := 0;
    blank.max_retries := 0;
    blank.is_async := false;
    blank.allow_failed_deps := false;
    blank.dependencies := '{}';
    blank.dependents := '{}';
    new_flows := ARRAY(SELECT flow FROM json_populate_recordset(NULL::{schema}.horsies_workflows, flows) AS flow);
    new_nodes := ARRAY(SELECT node FROM json_populate_recordset(blank, nodes) AS node);
    fault := {schema}.horsies_workflow_fault(flow_id, new_flows, new_nodes, parent_id, parent_index);
    IF fault IS NOT NULL THEN
        RAISE check_violation USING MESSAGE = fault,
            HINT = 'Nothing was stored. Start workflows with a horsies of the same version as the schema.';
    END IF;
    WITH asked AS MATERIALIZED (
        SELECT * FROM unnest(new_flows)
    ), first AS (
        INSERT INTO {schema}.horsies_workflows (
               id, root_workflow_id, parent_workflow_id, parent_task_index, depth, name, status, on_error, definition_key,
               output_task_index, success_policy, deadline_seconds, deadline_at, open_tasks, started_at)
        SELECT id, root_workflow_id, parent_workflow_id, parent_task_index, depth, name, status, on_error, definition_key,
               output_task_index, success_policy, deadline_seconds,
               CASE WHEN status = 'RUNNING' THEN now() + make_interval(secs => deadline_seconds) END, open_tasks,
               CASE WHEN status = 'RUNNING' THEN now() END
          FROM asked WHERE id = flow_id
        ON CONFLICT (id) DO NOTHING
        RETURNING id
    ), below AS (
        INSERT INTO {schema}.horsies_workflows (
               id, root_workflow_id, parent_workflow_id, parent_task_index, depth, name, status, on_error, definition_key,
               output_task_index, success_policy, deadline_seconds, deadline_at, open_tasks, started_at)
        SELECT id, root_workflow_id, parent_workflow_id, parent_task_index, depth, name, status, on_error, definition_key,
               output_task_index, success_policy, deadline_seconds,
               CASE WHEN status = 'RUNNING' THEN now() + make_interval(secs => deadline_seconds) END, open_tasks,
               CASE WHEN status = 'RUNNING' THEN now() END
          FROM asked WHERE id <> flow_id AND EXISTS (SELECT FROM first)
    ), node AS (
        INSERT INTO {schema}.horsies_workflow_tasks (
               workflow_id, task_index, task_id, sub_workflow_id, good_until, seconds, min_success, timeout_ms, priority,
               max_retries, is_async, allow_failed_deps, due_at, started_at, open_deps, open_sources, status, kind,
               join_type, node_id, task_name, queue_name, rate_key, task_kwargs, task_options, sub_definition_key,
               args_from, dependencies, dependents, workflow_ctx_from)
        SELECT workflow_id, task_index, task_id, sub_workflow_id, good_until, seconds, min_success, timeout_ms, priority,
               max_retries, is_async, allow_failed_deps,
               CASE WHEN status = 'RUNNING' THEN now() + make_interval(secs => seconds) END,
               CASE WHEN status IN ('ENQUEUED', 'RUNNING') THEN now() END,
               open_deps, open_sources, status, kind, join_type, node_id, task_name, queue_name, rate_key, task_kwargs,
               task_options, sub_definition_key, args_from, dependencies, dependents, workflow_ctx_from
          FROM unnest(new_nodes)
         WHERE EXISTS (SELECT FROM first)
        RETURNING workflow_id, task_index, task_id, task_name, queue_name, is_async, priority, task_kwargs, good_until,
                  timeout_ms, max_retries, task_options, rate_key, status, due_at
    ), sent AS (
        INSERT INTO {schema}.horsies_tasks_live (
               id, task_name, queue_name, is_async, priority, kwargs, good_until, timeout_ms, max_retries, task_options,
               rate_key, workflow_id, workflow_index)
        SELECT task_id, task_name, queue_name, is_async, priority, task_kwargs, good_until, timeout_ms, max_retries,
               task_options, coalesce(rate_key, ''), workflow_id, task_index
          FROM node WHERE status = 'ENQUEUED'
    ), woken AS (
        -- A worker must learn when to wake up for a timer.
        SELECT count(pg_notify({schema}.horsies_queue_channel(queue_name), ''))
          FROM (SELECT DISTINCT queues[1] AS queue_name FROM {schema}.horsies_workers
                 WHERE (waiting OR waiting_async) AND lease_expires_at > now()
                   AND (EXISTS (SELECT FROM node WHERE due_at IS NOT NULL)
                        OR EXISTS (SELECT FROM asked WHERE deadline_seconds IS NOT NULL))) AS worker
    )
    SELECT count(*) INTO stored FROM first CROSS JOIN woken;
    RETURN stored > 0;
END $$
$function$,

-- Start a workflow; return false if its id is taken. The function acts with the rights of the owner, because producers have
-- no right to write nodes and workflows themselves.
$function$
CREATE FUNCTION {schema}.horsies_start_workflow(flow_id uuid, flows json, nodes json) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN {schema}.horsies_store_workflow(flow_id, flows, nodes, NULL, NULL);
END $$
$function$,

-- Store the workflow that was built for a node, as a part of the node's workflow. If it is refused, return
-- the reason, else NULL.
$function$
CREATE FUNCTION {schema}.horsies_store_sub_workflow(
    flow_id uuid, flows json, nodes json, parent_id uuid, parent_index integer
) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT {schema}.horsies_store_workflow(flow_id, flows, nodes, parent_id, parent_index) THEN
        RETURN 'its id is taken, or it is not among its own rows';
    END IF;
    UPDATE {schema}.horsies_workflow_tasks SET sub_workflow_id = flow_id
     WHERE workflow_id = parent_id AND task_index = parent_index;
    RETURN NULL;
EXCEPTION WHEN integrity_constraint_violation OR data_exception THEN
    RETURN sqlerrm;
END $$
$function$
] LOOP
    EXECUTE replace(replace(statement, '{schema}', quote_ident(current_schema())),
                    '{literal}', replace(quote_ident(current_schema()), '''', ''''''));
END LOOP;
END $migration$;

-- Refuse a row that cannot be a task: horsies_notify_new calls this.
CREATE FUNCTION horsies_refuse(why text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE check_violation USING MESSAGE = why, HINT = 'Nothing was stored. Correct the row, or send it with horsies_send().';
END $$;

-- Note when a workflow was paused or went on.
CREATE FUNCTION horsies_note_pause() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NEW.status = 'PAUSED' THEN
        NEW.paused_at := now();
    ELSIF NEW.status IN ('PENDING', 'RUNNING') THEN
        NEW.resumed_at := now();
    END IF;
    RETURN NEW;
END $$;

-- Note when a schedule fired.
CREATE FUNCTION horsies_note_fired() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.fired_at := now();
    RETURN NEW;
END $$;

-- Triggers ------------------------------------------------------------------------------------------------------------

-- A statement fires the triggers of the table that it names, so both names of the live table have one.
CREATE TRIGGER horsies_tasks_new AFTER INSERT ON horsies_tasks REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION horsies_notify_new();
CREATE TRIGGER horsies_tasks_new AFTER INSERT ON horsies_tasks_live REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION horsies_notify_new();
CREATE TRIGGER horsies_tasks_final BEFORE UPDATE ON horsies_tasks_history FOR EACH ROW
    EXECUTE FUNCTION horsies_guard_final();
CREATE TRIGGER horsies_tasks_called AFTER INSERT ON horsies_tasks_history FOR EACH ROW
    WHEN (NEW.parent_id IS NOT NULL)
    EXECUTE FUNCTION horsies_call_ended();
CREATE TRIGGER horsies_tasks_unique AFTER INSERT ON horsies_tasks_history FOR EACH ROW
    WHEN (NEW.unique_key IS NOT NULL)
    EXECUTE FUNCTION horsies_unique_ended();
CREATE CONSTRAINT TRIGGER horsies_tasks_follow AFTER INSERT OR UPDATE OF kwargs ON horsies_tasks_live
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.follows IS NOT NULL)
    EXECUTE FUNCTION horsies_follower_sent();
CREATE TRIGGER horsies_workflows_paused BEFORE UPDATE OF status ON horsies_workflows FOR EACH ROW
    WHEN (NEW.status <> OLD.status AND (NEW.status = 'PAUSED' OR OLD.status = 'PAUSED'))
    EXECUTE FUNCTION horsies_note_pause();
CREATE TRIGGER horsies_schedule_state_fired BEFORE UPDATE OF run_count ON horsies_schedule_state FOR EACH ROW
    WHEN (NEW.run_count > OLD.run_count)
    EXECUTE FUNCTION horsies_note_fired();

-- Rights --------------------------------------------------------------------------------------------------------------

-- Functions that act with the rights of the owner, or that write workflows, are not for everybody. roles.sql grants them to
-- the roles that need them.
REVOKE EXECUTE ON FUNCTION
    horsies_prepare_history, horsies_drop_history, horsies_delete_history, horsies_forget, horsies_summarize_history,
    horsies_refresh_statistics, horsies_workflow_fault, horsies_store_workflow, horsies_start_workflow,
    horsies_store_sub_workflow, horsies_signal, horsies_call_ended, horsies_wake, horsies_debounce, horsies_join,
    horsies_follow, horsies_unique_ended, horsies_follower_sent
    FROM PUBLIC;

-- The first partitions of history -------------------------------------------------------------------------------------

SELECT horsies_prepare_history(7);
