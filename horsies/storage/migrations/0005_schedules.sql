-- What is to run when. A schedule of the code has a row from the first scheduler on that knows it; others are made at run
-- time. The definition is what is run; where `next_run_at` is, nothing before it will run any more. It is NULL while a
-- schedule is paused or not enabled.
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
    CONSTRAINT horsies_schedule_state_name CHECK (length(schedule_name) BETWEEN 1 AND 255),
    CONSTRAINT horsies_schedule_state_source CHECK (source IN ('code', 'runtime')),
    CONSTRAINT horsies_schedule_state_stopped CHECK (next_run_at IS NULL OR (enabled AND paused_at IS NULL))
) WITH (fillfactor = 70);
CREATE INDEX horsies_schedule_state_due ON horsies_schedule_state (next_run_at, schedule_name)
 WHERE next_run_at IS NOT NULL;
