-- Limits that hold for the whole cluster: how many tasks may be in flight, and how often one may be started.

-- How many tasks a worker holds of each queue that has a limit, as of its last claim; '' stands for all that it holds.
-- Counting the tasks themselves would take an index on their status, and every claim would have to write it.
CREATE TABLE horsies_in_flight (
    queue_name text    NOT NULL,
    worker_id  uuid    NOT NULL REFERENCES horsies_workers ON DELETE CASCADE,
    tasks      integer NOT NULL,
    PRIMARY KEY (queue_name, worker_id)
) WITH (fillfactor = 50);
CREATE INDEX horsies_in_flight_worker ON horsies_in_flight (worker_id);

-- How often tasks with a rate limit may be started: once in so many seconds, so many at once after a quiet time. The
-- next one is due `seconds` after `spent_until`. A rate of 0 seconds is no limit any more.
CREATE TABLE horsies_rates (
    rate_key    text             PRIMARY KEY,
    seconds     double precision NOT NULL,
    burst       integer          NOT NULL,
    spent_until timestamptz      NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);

-- A task with a rate limit stands in a line of its own within its queue, so that those which must wait are not walked
-- over by every claim.
ALTER TABLE horsies_tasks ADD COLUMN rate_key text NOT NULL DEFAULT '';
ALTER TABLE horsies_task_definitions ADD COLUMN rate_key text NOT NULL DEFAULT '';
DROP INDEX horsies_tasks_live_claim;
CREATE INDEX horsies_tasks_live_claim
    ON horsies_tasks_live (queue_name, is_async, rate_key, priority, enqueued_at, id);

-- A plan that was made while the live table was empty walks all of it, and is kept until the table is analysed, which
-- autovacuum does within a minute or so. A worker that finds itself slow asks for it at once; the new plans are
-- everyone's. Tells whether there was a reason. As with all that acts with its owner's rights, functions are the catalog's
-- by name, and not everybody may call it.
CREATE FUNCTION horsies_refresh_statistics() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    known record;
BEGIN
    SELECT relpages, reltuples INTO known FROM pg_class WHERE oid = 'horsies_tasks_live'::regclass;
    IF pg_catalog.pg_relation_size('horsies_tasks_live') / pg_catalog.current_setting('block_size')::integer
           <= 2 * known.relpages + 10
       AND known.reltuples > known.relpages THEN
        RETURN false;
    END IF;
    IF NOT pg_catalog.pg_try_advisory_xact_lock(7240118058) THEN
        RETURN false;  -- somebody else is at it
    END IF;
    ANALYZE horsies_tasks_live;
    RETURN true;
END $$;
REVOKE EXECUTE ON FUNCTION horsies_refresh_statistics FROM PUBLIC;

-- A worker may have room for tasks of one kind only. It is woken for those.
ALTER TABLE horsies_workers ADD COLUMN waiting_async boolean NOT NULL DEFAULT false;
CREATE OR REPLACE FUNCTION horsies_notify_new() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_notify(horsies_queue_channel(queue_name), id), pg_notify('task_new', id)
       FROM (SELECT queue_name, min(id::text) AS id, bool_or(is_async) AS has_async, bool_or(NOT is_async) AS has_plain
               FROM added GROUP BY queue_name) AS touched
      WHERE EXISTS (SELECT FROM horsies_workers AS worker
                     WHERE (worker.waiting AND has_plain OR worker.waiting_async AND has_async)
                       AND worker.lease_expires_at > now() AND touched.queue_name = ANY (worker.queues));
    RETURN NULL;
END $$;

-- As before, and with the rate key that workers have said the task has.
CREATE OR REPLACE FUNCTION horsies_send(
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
                               rate_key,
                               kwargs, enqueued_at, good_until)
    VALUES (wanted_id, horsies_send.task_name,
            coalesce(horsies_send.queue_name, known.queue_name, 'default'),
            coalesce(horsies_send.priority, known.priority, 100),
            coalesce(known.is_async, false), coalesce(known.max_retries, 0), known.timeout_ms, known.task_options,
            coalesce(known.rate_key, ''),
            horsies_send.kwargs::text, now() + make_interval(secs => coalesce(horsies_send.delay_seconds, 0)),
            horsies_send.good_until);
    -- In any case: this transaction may commit long after the insert looked whether a worker waits.
    PERFORM pg_notify(horsies_queue_channel(coalesce(horsies_send.queue_name, known.queue_name, 'default')), '');
    RETURN wanted_id;
END $$;

