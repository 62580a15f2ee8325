-- One table for every task. A small live partition holds the work that is still to be done; finished work moves to
-- history, partitioned by the day it ended. Everyone reads, inserts into and updates one name: horsies_tasks.
CREATE TABLE horsies_tasks (
    id                   uuid        NOT NULL DEFAULT gen_random_uuid(),
    sent_at              timestamptz NOT NULL DEFAULT now(),
    enqueued_at          timestamptz NOT NULL DEFAULT now(),
    good_until           timestamptz,
    claimed_at           timestamptz,
    claim_expires_at     timestamptz,
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
    CONSTRAINT horsies_tasks_status CHECK (status IN
        ('PENDING', 'CLAIMED', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')),
    CONSTRAINT horsies_tasks_live CHECK (live = (status IN ('PENDING', 'CLAIMED', 'RUNNING'))),
    CONSTRAINT horsies_tasks_priority CHECK (priority BETWEEN 1 AND 100),
    CONSTRAINT horsies_tasks_names CHECK (length(task_name) BETWEEN 1 AND 255 AND length(queue_name) BETWEEN 1 AND 100)
) PARTITION BY LIST (live);

-- No index or predicate here names a column that a claim changes: a claim stays a HOT update and writes no index.
-- A row is updated twice at most before it leaves, so the room for that is left on its page.
CREATE TABLE horsies_tasks_live PARTITION OF horsies_tasks (
    CONSTRAINT horsies_tasks_live_pkey PRIMARY KEY (id),
    CONSTRAINT horsies_tasks_live_owner CHECK ((status = 'PENDING') = (claimed_by_worker_id IS NULL))
) FOR VALUES IN (true) WITH (
    fillfactor = 60,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2
);
CREATE INDEX horsies_tasks_live_claim
    ON horsies_tasks_live (queue_name, is_async, priority, enqueued_at, id);
CREATE INDEX horsies_tasks_live_expiry ON horsies_tasks_live (good_until) WHERE good_until IS NOT NULL;
CREATE UNIQUE INDEX horsies_tasks_live_unique ON horsies_tasks_live (unique_key) WHERE unique_key IS NOT NULL;

CREATE TABLE horsies_tasks_history PARTITION OF horsies_tasks
    FOR VALUES IN (false) PARTITION BY RANGE (terminal_at);
-- Catches what ends on a day that nobody prepared a partition for.
CREATE TABLE horsies_tasks_history_default PARTITION OF horsies_tasks_history (
    CONSTRAINT horsies_tasks_history_default_pkey PRIMARY KEY (id)
) DEFAULT;

-- A history partition for each of the days from today on that has none yet; gives back how many it made. Attaching one
-- locks the default partition for a moment. While somebody reads that, everyone after us would wait as long as we do,
-- so we give up instead: another call makes it, and a day that already has rows in the default partition stays there.
CREATE FUNCTION horsies_prepare_history(days integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '100ms' AS $$
DECLARE
    today date := (now() AT TIME ZONE 'UTC')::date;
    part text;
    lower_end timestamptz;
    upper_end timestamptz;
    made integer := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock(7240118055) THEN
        RETURN 0;  -- somebody else is at it
    END IF;
    FOR offset_days IN 0 .. days LOOP
        part := 'horsies_tasks_' || to_char(today + offset_days, 'YYYYMMDD');
        lower_end := (today + offset_days)::timestamp AT TIME ZONE 'UTC';
        upper_end := (today + offset_days + 1)::timestamp AT TIME ZONE 'UTC';
        CONTINUE WHEN to_regclass(part) IS NOT NULL
            OR EXISTS (SELECT FROM horsies_tasks_history_default
                        WHERE terminal_at >= lower_end AND terminal_at < upper_end);
        EXECUTE format('CREATE TABLE %I (LIKE horsies_tasks_history INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', part);
        EXECUTE format('ALTER TABLE %I ADD CONSTRAINT %I PRIMARY KEY (id)', part, part || '_pkey');
        EXECUTE format('ALTER TABLE horsies_tasks_history ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                       part, lower_end, upper_end);
        made := made + 1;
    END LOOP;
    RETURN made;
EXCEPTION WHEN lock_not_available THEN
    RETURN 0;
END $$;

-- What has ended stays as it ended. The one way back is an operator's requeue of a failed task; retention may clear
-- a result, nothing may replace it.
CREATE FUNCTION horsies_guard_final() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    RAISE EXCEPTION 'task % is % and final', OLD.id, OLD.status USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER horsies_tasks_final BEFORE UPDATE ON horsies_tasks_history FOR EACH ROW
    WHEN (NOT (OLD.status = 'FAILED' AND NEW.status = 'PENDING')
          AND (NEW.status <> OLD.status OR NEW.error_code IS DISTINCT FROM OLD.error_code
               OR (NEW.result IS NOT NULL AND NEW.result IS DISTINCT FROM OLD.result)))
    EXECUTE FUNCTION horsies_guard_final();

-- Attempts that were followed by another one. A task's last attempt is its own row; horsies_task_attempts shows both.
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
    PRIMARY KEY (task_id, claim_seq)
);
CREATE INDEX horsies_attempts_finished ON horsies_attempts (finished_at);

CREATE VIEW horsies_task_attempts AS
SELECT task_id, attempt, outcome, true AS will_retry, started_at, finished_at, error_code, error_message,
       failed_reason, worker_id, worker_hostname, worker_pid, worker_process_name
  FROM horsies_attempts
UNION ALL
SELECT id, retry_count + 1, CASE status WHEN 'COMPLETED' THEN 'COMPLETED' ELSE 'FAILED' END, false,
       started_at, terminal_at, error_code, result::json -> 'err' ->> 'message',
       failed_reason, claimed_by_worker_id, worker_hostname, worker_pid, worker_process_name
  FROM horsies_tasks
 WHERE NOT live AND started_at IS NOT NULL AND status IN ('COMPLETED', 'FAILED', 'CANCELLED');

-- One row per worker process, under a fresh id at every start. The lease says that the parent is alive; `waiting`
-- says that it sleeps until it is notified.
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
    queues           text[]      NOT NULL
) WITH (fillfactor = 50);

-- What each task is like, as the workers that know it have said: what a send from plain SQL goes by.
CREATE TABLE horsies_task_definitions (
    task_name    text        PRIMARY KEY,
    queue_name   text        NOT NULL,
    priority     smallint    NOT NULL,
    is_async     boolean     NOT NULL,
    max_retries  smallint    NOT NULL,
    timeout_ms   integer,
    task_options text,
    updated_at   timestamptz NOT NULL DEFAULT now()
);

-- A key outlives its task, so that the same request sent again finds it.
CREATE TABLE horsies_idempotency_keys (
    idempotency_key text        PRIMARY KEY,
    task_id         uuid        NOT NULL,
    enqueue_sha     text        NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX horsies_idempotency_keys_age ON horsies_idempotency_keys (created_at);

-- The channel that wakes the workers of a queue; a name that does not fit a channel is replaced by its digest.
CREATE FUNCTION horsies_queue_channel(queue_name text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN octet_length(queue_name) <= 52 THEN 'task_queue_' || queue_name
                ELSE 'task_queue_' || md5(queue_name) END
$$;

-- A notification makes its transaction wait in line with every other notifier until its commit is on disk, so it is
-- sent only when a worker of that queue has said that it sleeps; one for each queue that the statement touched.
CREATE FUNCTION horsies_notify_new() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_notify(horsies_queue_channel(queue_name), id), pg_notify('task_new', id)
       FROM (SELECT queue_name, min(id::text) AS id FROM added GROUP BY queue_name) AS touched
      WHERE EXISTS (SELECT FROM horsies_workers AS worker
                     WHERE worker.waiting AND worker.lease_expires_at > now()
                       AND touched.queue_name = ANY (worker.queues));
    RETURN NULL;
END $$;
CREATE TRIGGER horsies_tasks_new AFTER INSERT ON horsies_tasks REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION horsies_notify_new();
CREATE TRIGGER horsies_tasks_new AFTER INSERT ON horsies_tasks_live REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION horsies_notify_new();

-- Send from plain SQL, a trigger or another language: SELECT horsies_send('task', '{"x": 1}').
CREATE FUNCTION horsies_send(
    task_name text,
    kwargs jsonb DEFAULT '{}',
    queue_name text DEFAULT NULL,
    priority integer DEFAULT NULL,
    delay_seconds double precision DEFAULT 0,
    good_until timestamptz DEFAULT NULL,
    idempotency_key text DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    wanted_id uuid := gen_random_uuid();
    sha text := encode(sha256(convert_to(horsies_send.task_name || kwargs::text, 'UTF8')), 'hex');
    known horsies_task_definitions;
    taken horsies_idempotency_keys;
BEGIN
    IF jsonb_typeof(horsies_send.kwargs) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'horsies_send: kwargs must be a JSON object of arguments by name, not %',
            coalesce(jsonb_typeof(horsies_send.kwargs), 'NULL') USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF horsies_send.delay_seconds < 0 THEN
        RAISE EXCEPTION 'horsies_send: delay_seconds must not be negative, it is %', horsies_send.delay_seconds
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF horsies_send.idempotency_key IS NOT NULL THEN
        INSERT INTO horsies_idempotency_keys (idempotency_key, task_id, enqueue_sha)
        VALUES (horsies_send.idempotency_key, wanted_id, sha)
        ON CONFLICT (idempotency_key) DO NOTHING;
        IF NOT FOUND THEN
            SELECT * INTO taken FROM horsies_idempotency_keys
             WHERE idempotency_key = horsies_send.idempotency_key;
            IF taken.enqueue_sha <> sha THEN
                RAISE EXCEPTION 'horsies_send: the idempotency key % belongs to another call',
                    quote_literal(horsies_send.idempotency_key) USING ERRCODE = 'unique_violation';
            END IF;
            RETURN taken.task_id;
        END IF;
    END IF;
    SELECT * INTO known FROM horsies_task_definitions WHERE task_name = horsies_send.task_name;
    INSERT INTO horsies_tasks (id, task_name, queue_name, priority, is_async, max_retries, timeout_ms, task_options,
                               kwargs, enqueued_at, good_until)
    VALUES (wanted_id, horsies_send.task_name,
            coalesce(horsies_send.queue_name, known.queue_name, 'default'),
            coalesce(horsies_send.priority, known.priority, 100),
            coalesce(known.is_async, false), coalesce(known.max_retries, 0), known.timeout_ms, known.task_options,
            horsies_send.kwargs::text, now() + make_interval(secs => coalesce(horsies_send.delay_seconds, 0)),
            horsies_send.good_until);
    -- In any case: this transaction may commit long after the insert looked whether a worker waits.
    PERFORM pg_notify(horsies_queue_channel(coalesce(horsies_send.queue_name, known.queue_name, 'default')), '');
    RETURN wanted_id;
END $$;

SELECT horsies_prepare_history(7);
