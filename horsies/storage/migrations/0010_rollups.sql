-- What ended in each minute, by queue and task, so that a day can be drawn without counting tasks. The row with the empty
-- queue and task sums up a minute; there is one for every minute, so that the newest tells how far the counting has come.
-- Times are in milliseconds; waits and runs count the tasks below each bound of horsies_time_bounds(), those above the
-- last one in the end.
CREATE TABLE horsies_rollups (
    minute     timestamptz NOT NULL,
    queue_name text        NOT NULL,
    task_name  text        NOT NULL,
    completed  bigint      NOT NULL,
    failed     bigint      NOT NULL,
    cancelled  bigint      NOT NULL,
    expired    bigint      NOT NULL,
    wait_ms    bigint      NOT NULL,
    run_ms     bigint      NOT NULL,
    waits      bigint[]    NOT NULL,
    runs       bigint[]    NOT NULL,
    PRIMARY KEY (minute, queue_name, task_name)
);
CREATE INDEX horsies_rollups_minutes ON horsies_rollups (minute) WHERE queue_name = '';

-- The same since counting began. These numbers only grow, whatever is deleted.
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

-- How deep the queues were, minute by minute.
CREATE TABLE horsies_depths (
    minute                 timestamptz NOT NULL,
    queue_name             text        NOT NULL,
    pending                bigint      NOT NULL,
    scheduled              bigint      NOT NULL,
    running                bigint      NOT NULL,
    oldest_pending_seconds double precision,
    PRIMARY KEY (minute, queue_name)
);

-- The bounds between which times are counted, in seconds.
CREATE FUNCTION horsies_time_bounds() RETURNS double precision[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ARRAY[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800]::double precision[]
$$;

-- How many there are in each place, from 0 to the number of bounds.
CREATE FUNCTION horsies_histogram(places integer[]) RETURNS bigint[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT array_agg(coalesce(tasks, 0) ORDER BY place)
      FROM generate_series(0, 15) AS place
      LEFT JOIN (SELECT place, count(*) AS tasks FROM unnest(places) AS place GROUP BY place) AS counted USING (place)
$$;

-- Two histograms as one.
CREATE FUNCTION horsies_add(one bigint[], other bigint[]) RETURNS bigint[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT array_agg(a + b ORDER BY place) FROM unnest(one, other) WITH ORDINALITY AS both_ (a, b, place)
$$;
CREATE AGGREGATE horsies_sum(bigint[]) (
    SFUNC = horsies_add, STYPE = bigint[], INITCOND = '{0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}', PARALLEL = SAFE
);

-- Which pages hold which moments is known of pages that were summarised; else that waits for a vacuum, and whoever asks
-- for the last minutes reads all that was written since. Gives back how many ranges were new.
CREATE FUNCTION horsies_summarize_history() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '100ms' AS $$
DECLARE
    part regclass;
    summarized integer := 0;
BEGIN
    FOR part IN
        SELECT link.inhrelid::regclass FROM pg_catalog.pg_inherits AS link
         WHERE link.inhparent = 'horsies_tasks_ended'::pg_catalog.regclass
    LOOP
        summarized := summarized + pg_catalog.brin_summarize_new_values(part);
    END LOOP;
    RETURN summarized;
EXCEPTION WHEN lock_not_available THEN
    RETURN summarized;
END $$;
REVOKE EXECUTE ON FUNCTION horsies_summarize_history FROM PUBLIC;
