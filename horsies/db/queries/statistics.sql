-- name: recent
SELECT to_timestamp(floor(extract(epoch FROM terminal_at) / 5) * 5) AS at,
       count(*) FILTER (WHERE status = 'COMPLETED') AS completed, count(*) FILTER (WHERE status = 'FAILED') AS failed,
       count(*) FILTER (WHERE status NOT IN ('COMPLETED', 'FAILED')) AS other,
       {histograms}
  FROM horsies_tasks_history {durations}
 WHERE terminal_at >= %(since)s AND terminal_at < %(until)s
 GROUP BY 1 ORDER BY 1;

-- name: throughput
-- Count the tasks that ended within the last seconds, by queue.
SELECT queue_name, count(*) AS ended, count(*) FILTER (WHERE status = 'FAILED') AS failed
  FROM horsies_tasks_history
 WHERE terminal_at >= now() - make_interval(secs => %(seconds)s) AND terminal_at <= now()
 GROUP BY queue_name;

-- name: minutes
SELECT minute AS at, completed, failed, least(greatest(cancelled::numeric + expired, -9e18), 9e18)::bigint AS other, waits, runs
  FROM horsies_rollups WHERE queue_name = '' AND minute >= %(since)s AND minute <= now() ORDER BY minute;

-- name: depths
SELECT minute AS at, least(greatest(sum(pending), -9e18), 9e18)::bigint AS pending,
       least(greatest(sum(running), -9e18), 9e18)::bigint AS running
  FROM horsies_depths WHERE minute >= %(since)s AND minute <= now() GROUP BY minute ORDER BY minute;

-- name: busiest
-- Sum the counts since a time by queue and task, the most frequent first. Sums are cut to what fits a bigint, because anybody
-- may have written the rows.
SELECT queue_name, task_name, least(greatest(sum(completed), -9e18), 9e18)::bigint AS completed,
       least(greatest(sum(failed), -9e18), 9e18)::bigint AS failed,
       least(greatest(sum(cancelled) + sum(expired), -9e18), 9e18)::bigint AS other,
       least(greatest(sum(run_ms), -9e18), 9e18)::bigint AS run_ms
  FROM horsies_rollups
 WHERE minute >= %(since)s AND minute <= now() AND queue_name <> ''
 GROUP BY queue_name, task_name ORDER BY sum(completed) + sum(failed) DESC, queue_name, task_name LIMIT %(limit)s;

-- name: error_codes
SELECT error_code, count(*)
  FROM (SELECT left(error_code, 300) AS error_code FROM horsies_tasks_history WHERE status = 'FAILED'
         ORDER BY terminal_at DESC, id DESC LIMIT 1000) AS latest
 WHERE error_code IS NOT NULL
 GROUP BY error_code ORDER BY count(*) DESC, error_code LIMIT 20;

-- name: totals
SELECT queue_name, task_name, completed, failed, cancelled, expired, wait_ms, run_ms, waits, runs FROM horsies_totals
 ORDER BY queue_name, task_name;
