-- fragment: rollup_sums
-- Sums of rollups. They are cut to what fits a bigint, because anybody may have written the rows.
least(greatest(coalesce(sum(completed), 0), -9e18), 9e18)::bigint AS completed,
least(greatest(coalesce(sum(failed), 0), -9e18), 9e18)::bigint AS failed,
least(greatest(coalesce(sum(cancelled), 0) + coalesce(sum(expired), 0), -9e18), 9e18)::bigint AS other,
least(greatest(coalesce(sum(run_ms), 0), -9e18), 9e18)::bigint AS run_ms

-- fragment: rollup_histograms
-- The sums of histograms, place by place, because horsies_sum takes a hundred times as long, and the longest times.
ARRAY[sum(waits[1]), sum(waits[2]), sum(waits[3]), sum(waits[4]), sum(waits[5]), sum(waits[6]), sum(waits[7]), sum(waits[8]),
      sum(waits[9]), sum(waits[10]), sum(waits[11]), sum(waits[12]), sum(waits[13]), sum(waits[14]), sum(waits[15]),
      sum(waits[16])] AS waits,
ARRAY[sum(runs[1]), sum(runs[2]), sum(runs[3]), sum(runs[4]), sum(runs[5]), sum(runs[6]), sum(runs[7]), sum(runs[8]),
      sum(runs[9]), sum(runs[10]), sum(runs[11]), sum(runs[12]), sum(runs[13]), sum(runs[14]), sum(runs[15]), sum(runs[16])] AS runs,
max(max_wait_seconds) AS max_wait_seconds, max(max_run_seconds) AS max_run_seconds

-- fragment: step_of_minute
to_timestamp(floor(extract(epoch FROM minute) / %(step)s) * %(step)s)

-- fragment: in_scope
minute >= %(since)s AND minute < %(until)s AND queue_name <> ''
AND (%(queue)s::text IS NULL OR queue_name = %(queue)s) AND (%(name)s::text IS NULL OR task_name = %(name)s)

-- name: recent
SELECT to_timestamp(floor(extract(epoch FROM terminal_at) / 5) * 5) AS at, left(queue_name, 300) AS queue_name,
       left(task_name, 300) AS task_name, coalesce(sum(ran * 1000) FILTER (WHERE ran BETWEEN 0 AND 1e9), 0)::bigint AS run_ms,
       count(*) FILTER (WHERE status = 'COMPLETED') AS completed, count(*) FILTER (WHERE status = 'FAILED') AS failed,
       count(*) FILTER (WHERE status NOT IN ('COMPLETED', 'FAILED')) AS other,
       {histograms}
  FROM horsies_tasks_history {durations}
 WHERE terminal_at >= %(since)s AND terminal_at < %(until)s
 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;

-- name: counted_until
SELECT max(minute) + interval '1 minute' FROM horsies_rollups WHERE queue_name = '' AND minute <= now();

-- name: counted_at
-- The steps of a time span in which a worker has counted, also if nothing ended.
SELECT DISTINCT {step_of_minute} AS at FROM horsies_rollups WHERE queue_name = '' AND minute >= %(since)s AND minute < %(until)s;

-- name: steps
-- Sum the counts of each step of a time span, of all tasks.
SELECT {step_of_minute} AS at, {rollup_sums}, {rollup_histograms}
  FROM horsies_rollups WHERE queue_name = '' AND minute >= %(since)s AND minute < %(until)s GROUP BY 1 ORDER BY 1;

-- name: steps_in_scope
-- The same of one queue or one task.
SELECT {step_of_minute} AS at, {rollup_sums}, {rollup_histograms}
  FROM horsies_rollups WHERE {in_scope} GROUP BY 1 ORDER BY 1;

-- name: parts
-- Sum the counts of each step by queue or by task: of those that ran most often, and of all others together as NULL.
WITH counts AS (
    SELECT {step_of_minute} AS at, CASE WHEN %(by)s = 'queue' THEN queue_name ELSE task_name END AS label, {rollup_sums}
      FROM horsies_rollups WHERE {in_scope} GROUP BY 1, 2
), ranked AS (
    SELECT label, row_number() OVER (ORDER BY sum(completed::numeric + failed) DESC, label) AS place FROM counts GROUP BY label
)
SELECT at, CASE WHEN place <= %(most)s THEN left(label, 300) END AS label,
       least(sum(completed), 9e18)::bigint AS completed, least(sum(failed), 9e18)::bigint AS failed,
       least(sum(other), 9e18)::bigint AS other, least(sum(run_ms), 9e18)::bigint AS run_ms
  FROM counts JOIN ranked USING (label) GROUP BY 1, 2 ORDER BY 1, 2;

-- name: pairs
-- Sum the counts of a time span by queue and task, the most frequent first, and of all others together in a row without names.
WITH counts AS (
    SELECT queue_name, task_name, {rollup_sums}, row_number() OVER (ORDER BY sum(completed) + sum(failed) DESC, queue_name, task_name) AS place
      FROM horsies_rollups WHERE {in_scope} GROUP BY queue_name, task_name
)
SELECT CASE WHEN place <= %(most)s THEN left(queue_name, 300) ELSE '' END AS queue_name,
       CASE WHEN place <= %(most)s THEN left(task_name, 300) ELSE '' END AS task_name,
       least(sum(completed), 9e18)::bigint AS completed, least(sum(failed), 9e18)::bigint AS failed,
       least(sum(other), 9e18)::bigint AS other, least(sum(run_ms), 9e18)::bigint AS run_ms
  FROM counts GROUP BY 1, 2 ORDER BY 1, 2;

-- name: depths_by_queue
-- The depth of each queue, or of one, in the last minute of each step that was counted.
SELECT minute AS at, left(queue_name, 300) AS queue_name, pending, running
  FROM horsies_depths
 WHERE minute = ANY (ARRAY (SELECT max(minute) FROM horsies_depths WHERE minute >= %(since)s AND minute <= now() GROUP BY {step_of_minute}))
   AND (%(queue)s::text IS NULL OR queue_name = %(queue)s)
 ORDER BY 1, 2;

-- name: throughput_by_queue
SELECT {step_of_minute} AS at, left(queue_name, 300) AS queue_name, {rollup_sums}
  FROM horsies_rollups WHERE {in_scope} GROUP BY 1, 2 ORDER BY 1, 2;

-- name: latencies
-- The wait and run times of the tasks that a worker ended, or that have a key, among the newest `most` tasks.
SELECT count(*)::integer AS tasks, count(*) FILTER (WHERE status = 'FAILED')::integer AS failed,
       percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY waited) AS waits,
       percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY ran) AS runs
  FROM (SELECT * FROM horsies_tasks WHERE live >= false ORDER BY id DESC LIMIT %(most)s) AS newest {durations}
 WHERE NOT live AND (%(worker_id)s::uuid IS NULL OR claimed_by_worker_id = %(worker_id)s)
   AND (%(key)s::text IS NULL OR rate_key = 'key=' || %(key)s);

-- name: throughput
-- Count the tasks that ended within the last seconds, by queue.
SELECT queue_name, count(*) AS ended, count(*) FILTER (WHERE status = 'FAILED') AS failed
  FROM horsies_tasks_history
 WHERE terminal_at >= now() - make_interval(secs => %(seconds)s) AND terminal_at <= now()
 GROUP BY queue_name;

-- name: minutes
SELECT minute AS at, completed, failed, least(greatest(cancelled::numeric + expired, -9e18), 9e18)::bigint AS other, waits, runs,
       max_wait_seconds, max_run_seconds
  FROM horsies_rollups WHERE queue_name = '' AND minute >= %(since)s AND minute <= now() ORDER BY minute;

-- name: depths
SELECT minute AS at, least(greatest(sum(pending), -9e18), 9e18)::bigint AS pending,
       least(greatest(sum(running), -9e18), 9e18)::bigint AS running
  FROM horsies_depths WHERE minute >= %(since)s AND minute <= now() GROUP BY minute ORDER BY minute;

-- name: busiest
-- Sum the counts since a time by queue and task, the most frequent first. Sums are cut to what fits a bigint, because anybody
-- may have written the rows.
SELECT left(queue_name, 300) AS queue_name, left(task_name, 300) AS task_name,
       least(greatest(sum(completed), -9e18), 9e18)::bigint AS completed,
       least(greatest(sum(failed), -9e18), 9e18)::bigint AS failed,
       least(greatest(sum(cancelled) + sum(expired), -9e18), 9e18)::bigint AS other,
       least(greatest(sum(run_ms), -9e18), 9e18)::bigint AS run_ms,
       least(greatest(sum(cancelled), -9e18), 9e18)::bigint AS cancelled,
       least(greatest(sum(expired), -9e18), 9e18)::bigint AS expired
  FROM horsies_rollups
 WHERE minute >= %(since)s AND minute <= now() AND queue_name <> ''
 GROUP BY 1, 2 ORDER BY sum(completed) + sum(failed) DESC, 1, 2 LIMIT %(limit)s;

-- name: rate_limits
-- The rate limits of tasks, those that must wait longest first. Epochs are subtracted: PostgreSQL up to 16 cannot subtract
-- infinite times. A wait is cut to 30 years, because anybody may have written the rows.
SELECT rate_key AS name, seconds, burst,
       least(greatest(extract(epoch FROM spent_until)::double precision + seconds, extract(epoch FROM held_until)::double precision)
                 - extract(epoch FROM clock_timestamp())::double precision, 1e9) AS due_in
  FROM horsies_rates WHERE seconds > 0
 ORDER BY due_in DESC, name LIMIT 100;

-- name: tables
-- The largest tables. Counts of rows are those of the statistics. All partitions of the history are one table here.
SELECT CASE WHEN table_.relname ~ '^horsies_tasks_(history.*|[0-9]+)$' THEN 'horsies_tasks_history' ELSE table_.relname END AS name,
       count(*) AS partitions, sum(pg_total_relation_size(table_.oid))::bigint AS bytes,
       sum(greatest(reltuples, pg_stat_get_live_tuples(table_.oid), 0))::bigint AS rows,
       sum(pg_stat_get_dead_tuples(table_.oid))::bigint AS dead_rows,
       max(greatest(pg_stat_get_last_vacuum_time(table_.oid), pg_stat_get_last_autovacuum_time(table_.oid))) AS vacuumed_at
  FROM pg_class AS table_
 WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'horsies_tasks'::regclass)
   AND starts_with(table_.relname, 'horsies_') AND relkind = 'r'
 GROUP BY 1 ORDER BY bytes DESC, 1 LIMIT 12;

-- name: error_codes
SELECT error_code, count(*)
  FROM (SELECT left(error_code, 300) AS error_code FROM horsies_tasks_history WHERE status = 'FAILED'
         ORDER BY terminal_at DESC, id DESC LIMIT 1000) AS latest
 WHERE error_code IS NOT NULL
 GROUP BY error_code ORDER BY count(*) DESC, error_code LIMIT 20;

-- name: totals
SELECT queue_name, task_name, completed, failed, cancelled, expired, wait_ms, run_ms, waits, runs FROM horsies_totals
 ORDER BY queue_name, task_name;
