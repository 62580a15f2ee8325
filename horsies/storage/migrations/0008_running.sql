-- What concerns a task while it runs: a wish that it stop, how far it is, what it logs.

-- Since when a task that runs is asked to stop: however it ends then, it has been cancelled. And from when on a task has
-- waited for a worker that knows it, if it was put off for want of one. No claim changes either.
ALTER TABLE horsies_tasks ADD COLUMN cancel_asked_at timestamptz;
ALTER TABLE horsies_tasks ADD COLUMN unknown_since timestamptz;
CREATE INDEX horsies_tasks_live_unknown ON horsies_tasks_live (task_name) WHERE unknown_since IS NOT NULL;

-- How far a task is, as it last said; of an earlier run nothing replaces what a later one has said.
CREATE TABLE horsies_progress (
    task_id   uuid             PRIMARY KEY,
    claim_seq integer          NOT NULL,
    done      double precision NOT NULL,
    total     double precision,
    message   text             NOT NULL DEFAULT '',
    at        timestamptz      NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
CREATE INDEX horsies_progress_age ON horsies_progress (at);

-- What tasks have logged. Lines of a run are numbered from 0 on; of more than are kept the last ones are, so that a gap in
-- the numbers tells how many are missing.
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
