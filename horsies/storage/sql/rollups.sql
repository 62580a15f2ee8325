-- name: turn
-- Whether it is our turn to count, until the end of the transaction.
SELECT pg_try_advisory_xact_lock(7240118060);

-- name: summarize
SELECT horsies_summarize_history();

-- name: roll
-- Count what ended in the minutes that are over and not counted yet, an hour of them at most. A minute is over half a
-- minute after its end: whoever ends a task may commit a little later than the moment that is written down.
WITH reach AS (
    SELECT since, least(date_trunc('minute', now() - interval '30 seconds'), since + interval '1 hour') AS until
      FROM (SELECT greatest(max(minute) + interval '1 minute', date_trunc('minute', now()) - interval '1 day') AS since
              FROM horsies_rollups WHERE queue_name = '' AND task_name = '') AS counted
), ended AS (
    SELECT date_trunc('minute', terminal_at) AS minute, queue_name, task_name,
           count(*) FILTER (WHERE status = 'COMPLETED') AS completed,
           count(*) FILTER (WHERE status = 'FAILED') AS failed,
           count(*) FILTER (WHERE status = 'CANCELLED') AS cancelled,
           count(*) FILTER (WHERE status = 'EXPIRED') AS expired,
           coalesce(sum(extract(epoch FROM greatest(started_at - enqueued_at, '0')) * 1000), 0)::bigint AS wait_ms,
           coalesce(sum(extract(epoch FROM greatest(terminal_at - started_at, '0')) * 1000), 0)::bigint AS run_ms,
           horsies_histogram(array_agg(width_bucket(
               extract(epoch FROM started_at - enqueued_at)::double precision, horsies_time_bounds()))
               FILTER (WHERE started_at IS NOT NULL)) AS waits,
           horsies_histogram(array_agg(width_bucket(
               extract(epoch FROM terminal_at - started_at)::double precision, horsies_time_bounds()))
               FILTER (WHERE started_at IS NOT NULL)) AS runs
      FROM horsies_tasks_history
     WHERE terminal_at >= (SELECT since FROM reach) AND terminal_at < (SELECT until FROM reach)
     GROUP BY 1, 2, 3
), minutes AS (
    SELECT minute, '' AS queue_name, '' AS task_name, coalesce(sum(completed), 0)::bigint AS completed,
           coalesce(sum(failed), 0)::bigint AS failed, coalesce(sum(cancelled), 0)::bigint AS cancelled,
           coalesce(sum(expired), 0)::bigint AS expired, coalesce(sum(wait_ms), 0)::bigint AS wait_ms,
           coalesce(sum(run_ms), 0)::bigint AS run_ms,
           horsies_sum(waits) FILTER (WHERE waits IS NOT NULL) AS waits,
           horsies_sum(runs) FILTER (WHERE runs IS NOT NULL) AS runs
      FROM reach
     CROSS JOIN generate_series(since, until - interval '1 minute', interval '1 minute') AS minute
      LEFT JOIN ended USING (minute)
     GROUP BY minute
), written AS (
    INSERT INTO horsies_rollups TABLE ended UNION ALL TABLE minutes
), added AS (
    INSERT INTO horsies_totals AS total
    SELECT queue_name, task_name, sum(completed), sum(failed), sum(cancelled), sum(expired), sum(wait_ms), sum(run_ms),
           horsies_sum(waits), horsies_sum(runs)
      FROM ended GROUP BY queue_name, task_name
    ON CONFLICT (queue_name, task_name) DO UPDATE
       SET completed = total.completed + excluded.completed, failed = total.failed + excluded.failed,
           cancelled = total.cancelled + excluded.cancelled, expired = total.expired + excluded.expired,
           wait_ms = total.wait_ms + excluded.wait_ms, run_ms = total.run_ms + excluded.run_ms,
           waits = horsies_add(total.waits, excluded.waits), runs = horsies_add(total.runs, excluded.runs)
)
SELECT count(*) FROM minutes;

-- name: sound
-- Write down how deep the queues are, once a minute.
INSERT INTO horsies_depths
SELECT date_trunc('minute', now()), queue_name,
       count(*) FILTER (WHERE status = 'PENDING' AND enqueued_at <= now()),
       count(*) FILTER (WHERE status = 'PENDING' AND enqueued_at > now()),
       count(*) FILTER (WHERE status <> 'PENDING'),
       extract(epoch FROM now() - min(enqueued_at) FILTER (WHERE status = 'PENDING' AND enqueued_at <= now()))
  FROM horsies_tasks_live
 GROUP BY queue_name
ON CONFLICT DO NOTHING;

-- name: forget
-- Two days are kept, one more than is drawn.
WITH rollups AS (
    DELETE FROM horsies_rollups WHERE minute < now() - interval '2 days'
)
DELETE FROM horsies_depths WHERE minute < now() - interval '2 days';
