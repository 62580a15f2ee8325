-- What workers were like, over time. Each row is complete in itself, so that a worker which is long gone can be read.
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
    CONSTRAINT horsies_worker_states_few_ids CHECK (cardinality(current_task_ids) <= 100)
);
CREATE INDEX horsies_worker_states_latest ON horsies_worker_states (worker_id, snapshot_at DESC);
CREATE INDEX horsies_worker_states_age ON horsies_worker_states (snapshot_at);

-- Signs of life of tasks that run for long. Nothing is decided by them: whether a worker lives, its lease says.
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
