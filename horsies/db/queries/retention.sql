-- name: drop_days
SELECT horsies_drop_history(%(before)s);

-- name: find_old
-- The keys of finished tasks that match a filter. The time is text: it may be one that a Python datetime cannot hold.
SELECT id, to_json(terminal_at) #>> '{}' FROM horsies_tasks_history
 WHERE terminal_at < %(before)s AND queue_name <> ALL (%(others)s::text[]) AND {matches_filter}
 LIMIT %(most)s;

-- name: count_old
SELECT count(*) FROM horsies_tasks_history
 WHERE terminal_at < %(before)s AND queue_name <> ALL (%(others)s::text[]) AND {matches_filter};

-- name: delete
-- Delete finished tasks with all that belongs to them. The time at which a task ended selects its one partition.
WITH gone AS (
    DELETE FROM horsies_tasks_history AS task
     USING unnest(%(ids)s::uuid[], %(ended)s::text[]::timestamptz[]) AS old (id, terminal_at)
     WHERE task.id = old.id AND task.terminal_at = old.terminal_at
    RETURNING task.id
), attempts AS (
    DELETE FROM horsies_attempts AS attempt USING gone WHERE attempt.task_id = gone.id
), progress AS (
    DELETE FROM horsies_progress AS progress USING gone WHERE progress.task_id = gone.id
), logs AS (
    DELETE FROM horsies_task_logs AS line USING gone WHERE line.task_id = gone.id
), steps AS (
    DELETE FROM horsies_steps AS step USING gone WHERE step.task_id = gone.id
), signals AS (
    DELETE FROM horsies_signals AS signal USING gone WHERE signal.task_id = gone.id
)
SELECT id FROM gone;

-- name: delete_as_worker
-- The same for workers, which have no right to delete finished tasks directly.
SELECT horsies_delete_history(%(ids)s::uuid[], %(ended)s::timestamptz[]);

-- name: delete_records
SELECT horsies_forget(%(what)s::text, %(before)s::timestamptz, least(%(batch)s, 1000000)::integer);

-- name: delete_worker_records
-- Delete old snapshots and heartbeats, at most one batch of each, and skip rows that another session deletes. NULL hours
-- keep the rows for ever, and so does an age above a century.
SELECT greatest(
    horsies_forget('states', now() - make_interval(hours => least(%(state_hours)s, 876000)::integer),
                   least(%(batch)s, 1000000)::integer),
    horsies_forget('heartbeats', now() - make_interval(hours => least(%(heartbeat_hours)s, 876000)::integer),
                   least(%(batch)s, 1000000)::integer));

-- name: try_rollup_lock
-- Only one transaction counts at a time.
SELECT pg_try_advisory_xact_lock(7240118060);

-- name: summarize_history
SELECT horsies_summarize_history();

-- name: count_minutes
-- Count the tasks that ended in the minutes that have passed and are not counted yet, at most an hour of them. A minute is
-- counted 30 seconds after its end: the transaction that ends a task may commit a little later than its terminal_at.
-- A duration that is not between 0 and 30 years is counted, but not added to the sums.
WITH span AS (
    SELECT since, least(date_trunc('minute', now() - interval '30 seconds'), since + interval '1 hour') AS until
      FROM (SELECT greatest(max(minute) + interval '1 minute', date_trunc('minute', now()) - interval '1 day') AS since
              FROM horsies_rollups WHERE queue_name = '' AND task_name = '' AND minute <= now()) AS counted
), ended AS (
    SELECT date_trunc('minute', terminal_at) AS minute, queue_name, task_name,
           count(*) FILTER (WHERE status = 'COMPLETED') AS completed,
           count(*) FILTER (WHERE status = 'FAILED') AS failed,
           count(*) FILTER (WHERE status = 'CANCELLED') AS cancelled,
           count(*) FILTER (WHERE status = 'EXPIRED') AS expired,
           coalesce(sum(waited * 1000) FILTER (WHERE waited BETWEEN 0 AND 1e9), 0)::bigint AS wait_ms,
           coalesce(sum(ran * 1000) FILTER (WHERE ran BETWEEN 0 AND 1e9), 0)::bigint AS run_ms,
           {histograms}
      FROM horsies_tasks_history {durations}
     WHERE terminal_at >= (SELECT since FROM span) AND terminal_at < (SELECT until FROM span)
     GROUP BY 1, 2, 3
), minutes AS (
    SELECT minute, '' AS queue_name, '' AS task_name, coalesce(sum(completed), 0)::bigint AS completed,
           coalesce(sum(failed), 0)::bigint AS failed, coalesce(sum(cancelled), 0)::bigint AS cancelled,
           coalesce(sum(expired), 0)::bigint AS expired, coalesce(sum(wait_ms), 0)::bigint AS wait_ms,
           coalesce(sum(run_ms), 0)::bigint AS run_ms,
           horsies_sum(waits) FILTER (WHERE waits IS NOT NULL) AS waits, horsies_sum(runs) FILTER (WHERE runs IS NOT NULL) AS runs,
           max(max_wait_seconds) AS max_wait_seconds, max(max_run_seconds) AS max_run_seconds
      FROM span
     CROSS JOIN generate_series(since, until - interval '1 minute', interval '1 minute') AS minute
      LEFT JOIN ended USING (minute)
     GROUP BY minute
), written AS (
    INSERT INTO horsies_rollups TABLE ended UNION ALL TABLE minutes ON CONFLICT DO NOTHING
), added AS (
    INSERT INTO horsies_totals AS total
    SELECT queue_name, task_name, sum(completed), sum(failed), sum(cancelled), sum(expired), sum(wait_ms), sum(run_ms),
           horsies_sum(waits), horsies_sum(runs)
      FROM ended GROUP BY queue_name, task_name
    ON CONFLICT (queue_name, task_name) DO UPDATE
       SET completed = least(total.completed, 9e18) + excluded.completed, failed = least(total.failed, 9e18) + excluded.failed,
           cancelled = least(total.cancelled, 9e18) + excluded.cancelled,
           expired = least(total.expired, 9e18) + excluded.expired,
           wait_ms = least(total.wait_ms, 9e18) + excluded.wait_ms, run_ms = least(total.run_ms, 9e18) + excluded.run_ms,
           waits = CASE WHEN 9e18 > ALL (total.waits) THEN horsies_add(total.waits, excluded.waits) ELSE total.waits END,
           runs = CASE WHEN 9e18 > ALL (total.runs) THEN horsies_add(total.runs, excluded.runs) ELSE total.runs END
)
SELECT count(*) FROM minutes;

-- name: record_depths
INSERT INTO horsies_depths
SELECT date_trunc('minute', now()), queue_name,
       count(*) FILTER (WHERE status = 'PENDING' AND enqueued_at <= now()),
       count(*) FILTER (WHERE status = 'PENDING' AND enqueued_at > now()),
       count(*) FILTER (WHERE status <> 'PENDING'),
       extract(epoch FROM now())::double precision - extract(epoch FROM
           min(enqueued_at) FILTER (WHERE status = 'PENDING' AND enqueued_at <= now()))::double precision
  FROM horsies_tasks_live
 GROUP BY queue_name
ON CONFLICT DO NOTHING;

-- name: delete_counts
-- Two days are kept, one more than the dashboard shows.
SELECT horsies_forget('counts', now() - interval '2 days', 1);
