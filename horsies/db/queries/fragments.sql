-- Pieces of SQL that statements of several files share. A statement inserts one as `{name}`.

-- fragment: is_owned
-- True for a task that this worker holds; for every task if no worker is given. The claim_seq alone would not do: a crash of the
-- server can undo a claim that was not flushed, and the next claim of the task, by anyone, has the same claim_seq.
(CAST(%(worker_id)s AS uuid) IS NULL OR task.claimed_by_worker_id = %(worker_id)s)

-- fragment: is_given
-- True for the tasks whose id and claim_seq are a key of the JSON object `by_call`. Tasks are found by an array of their ids:
-- with a join, a plan made for a nearly empty table could join in the other order and read the whole table.
task.id = ANY (ARRAY (SELECT CAST(left(call, 36) AS uuid) FROM given, jsonb_object_keys(by_call) AS call))
AND (SELECT by_call FROM given) ? (task.id || '/' || task.claim_seq)

-- fragment: is_slot_taken
-- True for a slot whose task still has it. A scalar subquery, not EXISTS: the planner could turn that into a join that begins
-- with the whole live table.
coalesce((SELECT task.status IN ('CLAIMED', 'RUNNING') FROM horsies_tasks_live AS task
           WHERE task.id = slot.task_id AND task.claim_seq = slot.claim_seq LIMIT 1), false)

-- fragment: complete
-- Complete tasks. A task that is no longer ours is not settled: its result is dropped. Nor is one that was cancelled: `fail`
-- settles it.
WITH given AS MATERIALIZED (
    SELECT CAST(%(completed)s AS jsonb) AS by_call
), ended AS (
    UPDATE horsies_tasks AS task
       SET live = false, status = 'COMPLETED', result = (SELECT by_call FROM given) ->> (task.id || '/' || task.claim_seq),
           completed_at = now(), terminal_at = now()
     WHERE task.live AND {is_given} AND {is_owned} AND task.status = 'RUNNING' AND task.cancel_asked_at IS NULL
    RETURNING task.id, task.awaited, task.rate_key

-- fragment: matches_names
(%(name)s::text IS NULL OR task_name = %(name)s) AND (%(queue)s::text IS NULL OR queue_name = %(queue)s)
AND (%(code)s::text IS NULL OR error_code = %(code)s)

-- fragment: matches_filter
(%(status)s::text IS NULL OR status = %(status)s) AND {matches_names}

-- fragment: has_text
(%(q)s::text IS NULL OR strpos(lower(task_name), lower(%(q)s)) > 0 OR error_code = %(q)s
 OR %(in_arguments)s AND (strpos(kwargs, %(q)s) > 0 OR strpos(args, %(q)s) > 0))

-- fragment: has_key
(%(key)s::text IS NULL OR rate_key = 'key=' || %(key)s)

-- fragment: error_kind
-- The message of a stored error without what differs from one failure to the next: quoted texts, and words with a digit or an @
-- in them. It is cut out with a regular expression, not decoded, because a text that is not JSON would fail the statement.
left(regexp_replace(regexp_replace(
    coalesce(substring(left(result, 4000) FROM '^\s*\{\s*"err".*?"message"\s*:\s*"((?:[^"\\]|\\.)*)'), failed_reason, ''),
    '\\"[^"]{1,200}\\"|''[^'']{1,200}''|[^\s"''(),;:=\[\]{}<>/]*[0-9@][^\s"''(),;:=\[\]{}<>/]*', '…', 'g'),
    '…(?:[:/.,-]…)+', '…', 'g'), 300)

-- fragment: is_kind
-- True for failures of the kind whose digest is given.
(%(kind)s::text IS NULL OR md5({error_kind}) = %(kind)s)

-- fragment: is_selected
-- True for the tasks of a `Selection`.
(%(ids)s::uuid[] IS NULL OR task.id = ANY (%(ids)s::uuid[])) AND {matches_filter} AND {has_text} AND {has_key}
AND (%(sent_since)s::uuid IS NULL OR task.id >= %(sent_since)s::uuid)
AND (%(ended_since)s::timestamptz IS NULL OR task.terminal_at >= %(ended_since)s::timestamptz)
AND (%(ended_until)s::timestamptz IS NULL OR task.terminal_at < %(ended_until)s::timestamptz) AND {is_kind}

-- fragment: durations
-- The seconds that a task waited and ran. Seconds are subtracted instead of times, because up to PostgreSQL 16 infinite times
-- cannot be subtracted.
CROSS JOIN LATERAL (
    SELECT extract(epoch FROM started_at)::double precision - extract(epoch FROM enqueued_at)::double precision AS waited,
           extract(epoch FROM terminal_at)::double precision - extract(epoch FROM started_at)::double precision AS ran
) AS durations

-- fragment: histograms
horsies_histogram(array_agg(width_bucket(waited, horsies_time_bounds())) FILTER (WHERE waited IS NOT NULL)) AS waits,
horsies_histogram(array_agg(width_bucket(ran, horsies_time_bounds())) FILTER (WHERE ran IS NOT NULL)) AS runs,
max(waited) FILTER (WHERE waited BETWEEN 0 AND 1e9) AS max_wait_seconds,
max(ran) FILTER (WHERE ran BETWEEN 0 AND 1e9) AS max_run_seconds

-- fragment: node_status
-- The status of a node for people: it is running once its task has been started, also between two attempts.
CASE WHEN node.status = 'ENQUEUED' AND (task.status = 'RUNNING' OR task.retry_count > 0) THEN 'RUNNING'
     ELSE node.status END AS status

-- fragment: task_of_node
-- The task of a node: in the live table while it waits or runs, and in the history when it has ended with its node.
LEFT JOIN LATERAL (SELECT live.status, live.retry_count, live.started_at FROM horsies_tasks_live AS live
                    WHERE node.status = 'ENQUEUED' AND live.id = node.task_id
                   UNION ALL
                   SELECT ended.status, ended.retry_count, ended.started_at FROM horsies_tasks AS ended
                    WHERE node.status IN ('COMPLETED', 'FAILED') AND NOT ended.live AND ended.id = node.task_id
                      AND ended.terminal_at = node.completed_at
                   LIMIT 1) AS task ON true

