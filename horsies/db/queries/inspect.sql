-- fragment: task_columns
id::text AS task_id, left(task_name, 300) AS task_name, left(status, 300) AS status,
left(queue_name, 300) AS queue_name, priority, retry_count, max_retries,
earlier_attempts::integer + retry_count + (started_at IS NOT NULL)::int AS attempts,
next_retry_at, sent_at, enqueued_at, claimed_at, started_at, completed_at, failed_at, terminal_at,
left(worker_hostname, 300) AS worker_hostname, worker_pid, left(worker_process_name, 300) AS worker_process_name,
left(error_code, 300) AS error_code, workflow_id::text AS workflow_id, left(kwargs, 200) AS arguments

-- fragment: listed_columns
{task_columns}, CASE WHEN %(with_messages)s THEN left(failed_reason, %(shown)s) END AS failed_reason,
CASE WHEN %(with_messages)s AND error_code IS NOT NULL THEN left(result, %(shown)s) END AS stored_error

-- name: tasks
-- List tasks, the newest first. The statement reads at most `most` rows and returns those that match the filter. Because the
-- table is partitioned by `live`, `live >= true` reads the live partition only, and `live >= false` reads all partitions.
SELECT {listed_columns}
  FROM (SELECT * FROM horsies_tasks
         WHERE live >= %(live_only)s AND id < %(before)s AND id >= %(after)s
         ORDER BY id DESC LIMIT %(most)s) AS newest
 WHERE {matches_filter} AND {has_text} AND {has_key}
 ORDER BY newest.id DESC LIMIT %(limit)s;

-- name: tasks_end
-- Return the last of the `most` rows that `tasks` reads, if there are so many.
SELECT id, sent_at AS at FROM horsies_tasks
 WHERE live >= %(live_only)s AND id < %(before)s AND id >= %(after)s
 ORDER BY id DESC OFFSET %(most)s - 1 LIMIT 1;

-- fragment: failed_in_history
FROM horsies_tasks_history
WHERE status = 'FAILED' AND (terminal_at, id) < (%(ended)s::timestamptz, %(before)s::uuid) AND terminal_at >= %(since)s
ORDER BY terminal_at DESC, id DESC LIMIT %(most)s

-- fragment: failed_in_live
FROM horsies_tasks_live
WHERE failed_at IS NOT NULL AND status = 'FAILED'
  AND (failed_at, id) < (%(ended)s::timestamptz, %(before)s::uuid) AND failed_at >= %(since)s
ORDER BY failed_at DESC, id DESC LIMIT %(most)s

-- name: failed_tasks
-- List failed tasks, the latest failure first. A task that could not be moved to history has failed in the live table. The
-- column `ended` is the exact time of the failure as text: it may be a time that Python cannot hold.
SELECT {listed_columns}, to_json(ended_at) #>> '{}' AS ended
  FROM (SELECT * FROM ((SELECT *, terminal_at AS ended_at {failed_in_history}) UNION ALL
                       (SELECT *, failed_at AS ended_at {failed_in_live})) AS failed
         ORDER BY ended_at DESC, id DESC LIMIT %(most)s) AS newest
 WHERE {matches_names} AND {has_text} AND {has_key} AND {is_kind}
 ORDER BY newest.ended_at DESC, newest.id DESC LIMIT %(limit)s;

-- name: failed_tasks_end
-- Return the last of the `most` rows that `failed_tasks` reads, if there are so many.
SELECT id, ended_at AS at, to_json(ended_at) #>> '{}' AS ended
  FROM ((SELECT id, terminal_at AS ended_at {failed_in_history}) UNION ALL
        (SELECT id, failed_at AS ended_at {failed_in_live})) AS failed
 ORDER BY ended_at DESC, id DESC OFFSET %(most)s - 1 LIMIT 1;

-- fragment: newest_tasks
SELECT * FROM horsies_tasks WHERE live >= %(live_only)s AND id >= %(after)s ORDER BY id DESC LIMIT %(most)s

-- fragment: newest_failures
SELECT * FROM horsies_tasks_history WHERE status = 'FAILED' AND terminal_at >= %(since)s
 ORDER BY terminal_at DESC, id DESC LIMIT %(most)s

-- fragment: ended_tasks
SELECT * FROM horsies_tasks_history WHERE terminal_at >= %(since)s AND terminal_at < %(until)s LIMIT %(most)s

-- fragment: seconds_of_task
-- What a list can be sorted by, as a number. Seconds are subtracted, not times: up to PostgreSQL 16 infinite times cannot be.
CROSS JOIN LATERAL (SELECT CASE %(sort)s
    WHEN 'run' THEN extract(epoch FROM coalesce(terminal_at, now()))::double precision
                    - extract(epoch FROM started_at)::double precision
    WHEN 'wait' THEN extract(epoch FROM coalesce(started_at, terminal_at, now()))::double precision
                     - extract(epoch FROM enqueued_at)::double precision
    WHEN 'ended' THEN extract(epoch FROM terminal_at)::double precision
    WHEN 'sent' THEN extract(epoch FROM sent_at)::double precision
    WHEN 'attempts' THEN earlier_attempts::integer + retry_count + (started_at IS NOT NULL)::int
    WHEN 'priority' THEN priority END AS value,
    CASE %(sort)s WHEN 'task' THEN task_name WHEN 'queue' THEN queue_name WHEN 'status' THEN status
                  WHEN 'error' THEN error_code END AS word) AS sorted

-- fragment: in_chosen_order
ORDER BY value * %(sign)s::integer NULLS LAST, CASE WHEN %(sign)s::integer > 0 THEN word END,
         CASE WHEN %(sign)s::integer < 0 THEN word END DESC NULLS LAST, id DESC LIMIT %(limit)s OFFSET %(skipped)s

-- name: sorted_tasks
-- List tasks in an order that no index has: the statement sorts the newest `most` of them.
SELECT {listed_columns} FROM ({newest_tasks}) AS newest {seconds_of_task} WHERE {matches_filter} AND {has_text} AND {has_key} {in_chosen_order};

-- name: sorted_failures
-- The same for the `most` latest failures.
SELECT {listed_columns} FROM ({newest_failures}) AS newest {seconds_of_task}
 WHERE {matches_names} AND {has_text} AND {has_key} AND {is_kind} {in_chosen_order};

-- name: sorted_ended
-- The same for tasks that ended within a time span; of more than `most`, any.
SELECT {listed_columns} FROM ({ended_tasks}) AS newest {seconds_of_task}
 WHERE {matches_filter} AND {has_text} AND {has_key} AND {is_kind} {in_chosen_order};

-- name: failure_groups
-- Group the latest failures by error code, task and kind of message, each group in parts by time. The last failure stands for
-- its part.
SELECT left(error_code, 300) AS error_code, left(task_name, 300) AS task_name, kind, md5(kind) AS digest, part, count(*) AS tasks,
       count(*) FILTER (WHERE workflow_id IS NULL) AS retryable,
       (array_agg(DISTINCT left(task_key, 100)) FILTER (WHERE task_key IS NOT NULL))[1:4] AS keys,
       min(terminal_at) AS first_at, max(terminal_at) AS last_at,
       (array_agg(id::text ORDER BY terminal_at DESC, id DESC))[1] AS last_id
  FROM (SELECT *, {error_kind} AS kind, CASE WHEN starts_with(rate_key, 'key=') THEN substr(rate_key, 5) ELSE coalesce(unique_key, follows) END AS task_key,
               least(greatest(floor((extract(epoch FROM terminal_at)::double precision
                                     - extract(epoch FROM %(since)s::timestamptz)::double precision) / %(step)s), 0),
                     %(part_count)s - 1)::integer AS part
          FROM ({newest_failures}) AS newest WHERE {matches_names}) AS latest
 GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 5;

-- name: task
-- Read one task. Texts are cut to `shown` characters. If an id is both live and in history, the live task counts.
SELECT {task_columns}, left(failed_reason, %(shown)s) AS failed_reason,
       good_until, timeout_ms, tags, is_async, crash_count, left(coalesce(unique_key, follows), 2000) AS unique_key,
       claimed_by_worker_id::text AS worker_id, claim_seq, cancel_asked_at,
       left(args, %(shown)s) AS args, length(args) AS args_length, left(kwargs, %(shown)s) AS kwargs,
       length(kwargs) AS kwargs_length, left(result, %(shown)s) AS result, length(result) AS result_length
  FROM horsies_tasks
 WHERE id = %(id)s AND (live OR terminal_at >= %(since)s)
 ORDER BY live DESC LIMIT 1;

-- name: stale_tasks
-- List tasks that are claimed or running while their worker is dead, unknown, or silent for `seconds`.
SELECT {task_columns}, NULL::text AS failed_reason
  FROM horsies_tasks_live
 WHERE status IN ('CLAIMED', 'RUNNING')
   AND NOT EXISTS (SELECT FROM horsies_workers AS worker
                    WHERE worker.worker_id = claimed_by_worker_id AND worker.dead_at IS NULL
                      AND worker.last_beat_at >= now() - make_interval(secs => %(seconds)s))
 ORDER BY id LIMIT 1000;

-- name: overdue_tasks
-- List tasks that wait although their `good_until` has passed.
SELECT {task_columns}, NULL::text AS failed_reason
  FROM horsies_tasks_live WHERE status = 'PENDING' AND good_until < now()
 ORDER BY id LIMIT 1000;

-- name: attempts
-- Read the attempts that another attempt followed, the latest first. The last attempt is the task's own row. It is left out:
-- the view would decode its result, and a text that is no JSON would fail the statement.
SELECT attempt, left(outcome, 300) AS outcome, will_retry, started_at, finished_at, left(error_code, 300) AS error_code,
       left(error_message, %(shown)s) AS error_message, left(failed_reason, %(shown)s) AS failed_reason,
       worker_id::text AS worker_id, left(worker_hostname, 300) AS worker_hostname, worker_pid,
       left(worker_process_name, 300) AS worker_process_name, requeued_at, left(traceback, %(shown)s) AS traceback
  FROM horsies_task_attempts
 WHERE task_id = %(id)s AND finished_at IS NOT NULL
   AND finished_at <> ALL (ARRAY (SELECT terminal_at FROM horsies_tasks
                                   WHERE id = %(id)s AND NOT live AND terminal_at IS NOT NULL))
 ORDER BY attempt DESC, finished_at DESC LIMIT %(limit)s;

-- name: payload
SELECT CASE %(part)s WHEN 'args' THEN args WHEN 'kwargs' THEN kwargs ELSE result END
  FROM horsies_tasks WHERE id = %(id)s ORDER BY live DESC LIMIT 1;

-- name: arguments
SELECT task_name, args, kwargs FROM horsies_tasks WHERE id = %(id)s ORDER BY live DESC LIMIT 1;

-- name: arguments_of_many
-- Read the arguments of several tasks, cut to the length that a message could quote.
SELECT id::text AS task_id, left(kwargs, 20000) AS kwargs, left(args, 20000) AS args FROM horsies_tasks
 WHERE id = ANY (%(ids)s::uuid[]) AND (live OR terminal_at >= %(since)s);

-- name: waiting
-- Read everything that may keep a task from running. Seconds are subtracted, not times: PostgreSQL 16 and older cannot
-- subtract an infinite time.
WITH task AS (
    SELECT * FROM horsies_tasks WHERE id = %(id)s
), alive AS (
    SELECT worker.*, latest.queue_max_concurrency, latest.cluster_wide_cap
      FROM horsies_workers AS worker
      LEFT JOIN LATERAL (SELECT queue_max_concurrency, cluster_wide_cap FROM horsies_worker_states AS state
                          WHERE state.worker_id = worker.worker_id ORDER BY snapshot_at DESC LIMIT 1) AS latest ON true
     WHERE worker.dead_at IS NULL AND worker.lease_expires_at > now() AND worker.state <> 'draining'
), serving AS (
    SELECT alive.* FROM alive, task WHERE task.queue_name = ANY (alive.queues)
)
SELECT task.id::text AS id, left(task.task_name, 300) AS task_name, left(task.status, 300) AS status,
       left(task.queue_name, 300) AS queue_name, task.is_async, task.priority,
       extract(epoch FROM task.enqueued_at)::double precision - moment.now AS due_in,
       extract(epoch FROM task.good_until)::double precision - moment.now AS expires_in,
       task.retry_count > 0 OR task.earlier_attempts > 0 AS was_tried,
       task.error_code, task.worker_hostname, task.worker_pid,
       moment.now - extract(epoch FROM coalesce(task.terminal_at, task.started_at, task.claimed_at))::double precision AS since,
       EXISTS (SELECT FROM horsies_suspensions WHERE queue_name = '') AS all_suspended,
       EXISTS (SELECT FROM horsies_suspensions AS held WHERE held.queue_name = task.queue_name) AS queue_suspended,
       (SELECT count(*) FROM alive)::integer AS workers,
       (SELECT count(*) FROM serving)::integer AS serving,
       EXISTS (SELECT FROM horsies_task_definitions AS known WHERE known.task_name = task.task_name) AS is_known,
       (SELECT count(*) FROM serving WHERE task.task_name = ANY (serving.task_names))::integer AS knowing,
       (SELECT min(CASE WHEN queue_max_concurrency ->> task.queue_name ~ '^[0-9]{1,18}$'
                        THEN (queue_max_concurrency ->> task.queue_name)::bigint END) FROM serving) AS queue_limit,
       (SELECT coalesce(sum(tasks), 0) FROM horsies_in_flight AS held WHERE held.queue_name = task.queue_name)::bigint
           AS queue_in_flight,
       (SELECT min(cluster_wide_cap) FROM serving) AS cluster_limit,
       (SELECT coalesce(sum(tasks), 0) FROM horsies_in_flight WHERE queue_name = '')::bigint AS cluster_in_flight,
       (SELECT extract(epoch FROM rate.spent_until)::double precision + rate.seconds - moment.now
          FROM horsies_rates AS rate WHERE rate.rate_key = coalesce(key.rate_name, task.rate_key) AND rate.seconds > 0)
           AS rate_allows_in,
       key.key, key.concurrency AS key_limit,
       (SELECT count(*) FROM horsies_key_slots AS slot WHERE slot.rate_key = key.lane AND {is_slot_taken})::integer AS key_running,
       ARRAY (SELECT left(holder.task_name, 100) || ' ' || slot.task_id
                FROM horsies_key_slots AS slot
                JOIN horsies_tasks_live AS holder ON holder.id = slot.task_id AND holder.claim_seq = slot.claim_seq
               WHERE slot.rate_key = key.lane AND holder.status IN ('CLAIMED', 'RUNNING')
               ORDER BY slot.taken_at LIMIT 3) AS key_holders,
       (SELECT paused_by FROM horsies_keys AS state WHERE state.rate_key = key.lane AND paused_at IS NOT NULL) AS key_paused_by,
       (SELECT extract(epoch FROM greatest(waits_until, CASE WHEN key.seconds > 0 THEN
                   spent_until + make_interval(secs => key.seconds * least(1, coalesce(task.cost, 1))) END))::double precision
               - moment.now
          FROM horsies_keys AS state WHERE state.rate_key = key.lane) AS key_allows_in,
       CASE WHEN task.rate_key >= 'batch=' AND task.rate_key < 'batch>' THEN (
            SELECT count(*) FROM (
                SELECT FROM horsies_tasks_live AS member
                 WHERE member.queue_name = task.queue_name AND member.is_async = task.is_async AND member.rate_key = task.rate_key
                   AND member.priority <> 0 AND member.parked_at IS NULL AND member.status = 'PENDING'
                   AND member.enqueued_at <= now()
                 LIMIT %(most)s) AS waiting) END::integer AS in_batch,
       (SELECT count(*) FROM (
            SELECT FROM horsies_tasks_live AS ahead
             WHERE ahead.queue_name = task.queue_name AND ahead.is_async = task.is_async AND ahead.status = 'PENDING'
               AND ahead.enqueued_at <= now() AND ahead.priority <> 0 AND ahead.parked_at IS NULL
               AND (key.lane IS NULL OR ahead.rate_key = key.lane)
               AND (ahead.priority, ahead.enqueued_at, ahead.id) < (task.priority, task.enqueued_at, task.id)
             LIMIT %(most)s) AS ahead)::integer AS ahead,
       (SELECT coalesce(sum(processes), 0) FROM serving)::bigint AS slots,
       (SELECT count(*) FROM horsies_tasks_live AS busy
         WHERE busy.status = 'RUNNING' AND busy.claimed_by_worker_id IN (SELECT worker_id FROM serving))::integer AS running,
       (SELECT flow.id::text FROM horsies_workflows AS flow
         WHERE flow.id = task.workflow_id AND flow.status = 'PAUSED') AS paused_workflow,
       moment.now - extract(epoch FROM task.unknown_since)::double precision AS unknown_for,
       extract(epoch FROM task.unknown_until)::double precision - moment.now AS fails_in,
       moment.now - extract(epoch FROM task.cancel_asked_at)::double precision AS asked_to_stop,
       left(step.name, 300) AS parked_in, left(step.kind, 300) AS parked_kind,
       extract(epoch FROM step.due_at)::double precision - moment.now AS parked_for, step.open_calls,
       (SELECT before.id::text FROM horsies_tasks_live AS before WHERE before.unique_key = task.follows) AS follows
  FROM task CROSS JOIN (SELECT extract(epoch FROM now())::double precision AS now) AS moment
  LEFT JOIN LATERAL (
       SELECT task.rate_key AS lane, left(substr(task.rate_key, 5), 300) AS key,
              (SELECT coalesce(known.rate_key, '') FROM horsies_task_definitions AS known
                WHERE known.task_name = task.task_name) AS rate_name,
              (SELECT known.key_concurrency FROM horsies_task_definitions AS known
                WHERE known.task_name = task.task_name) AS concurrency,
              (SELECT known.key_seconds FROM horsies_task_definitions AS known
                WHERE known.task_name = task.task_name) AS seconds
        WHERE task.rate_key >= 'key=' AND task.rate_key < 'key>') AS key ON true
  LEFT JOIN LATERAL (SELECT * FROM horsies_steps AS step
                      WHERE task.parked_at IS NOT NULL AND step.task_id = task.id AND step.ended_at IS NULL
                      ORDER BY step.started_at DESC LIMIT 1) AS step ON true
 ORDER BY task.live DESC LIMIT 1;

-- fragment: live_queues
WITH RECURSIVE live (queue_name) AS (
    (SELECT queue_name FROM horsies_tasks_live WHERE priority <> 0 AND parked_at IS NULL ORDER BY queue_name LIMIT 1)
    UNION ALL
    SELECT (SELECT task.queue_name FROM horsies_tasks_live AS task
             WHERE task.queue_name > live.queue_name AND task.priority <> 0 AND task.parked_at IS NULL
             ORDER BY task.queue_name LIMIT 1)
      FROM live WHERE live.queue_name IS NOT NULL
)

-- name: queues
-- List the queues that have tasks, that workers serve, or that are suspended. The statement counts at most `most` tasks of
-- each queue. For a deeper queue it adds the count that a worker last stored in horsies_depths.
{live_queues}, alive AS (
    SELECT worker_id, queues FROM horsies_workers WHERE dead_at IS NULL AND lease_expires_at > now()
), parked AS MATERIALIZED (
    SELECT queue_name, count(*) AS tasks
      FROM (SELECT queue_name FROM horsies_tasks_live WHERE parked_at IS NOT NULL AND follows IS NULL
             UNION ALL
            SELECT queue_name FROM horsies_tasks_live WHERE follows IS NOT NULL
             LIMIT %(most)s) AS first GROUP BY 1
), names AS (
    SELECT queue_name FROM live WHERE queue_name IS NOT NULL
    UNION SELECT queue_name FROM parked
    UNION SELECT queue_name FROM alive CROSS JOIN LATERAL unnest(queues) AS queue_name WHERE queue_name IS NOT NULL
    UNION SELECT queue_name FROM horsies_suspensions WHERE queue_name <> ''
), limits AS (
    SELECT key AS queue_name, min(value::bigint) AS max_concurrency
      FROM alive
     CROSS JOIN LATERAL (SELECT queue_max_concurrency FROM horsies_worker_states AS state
                          WHERE state.worker_id = alive.worker_id ORDER BY snapshot_at DESC LIMIT 1) AS latest
     CROSS JOIN LATERAL (SELECT key, CASE WHEN value ~ '^[0-9]{1,18}$' THEN value END AS value FROM jsonb_each_text(
           CASE WHEN jsonb_typeof(latest.queue_max_concurrency) = 'object' THEN latest.queue_max_concurrency END)) AS limit_
     WHERE value IS NOT NULL
     GROUP BY key
)
SELECT left(queue_name, 300) AS name, counted.pending, counted.scheduled, counted.claimed, counted.running,
       coalesce(parked.tasks, 0) AS parked, counted.oldest AS oldest_pending_seconds, counted.looked_at >= %(most)s AS is_deep, sounding.pending AS sounded,
       sounding.oldest_pending_seconds AS sounded_oldest_seconds, limits.max_concurrency, suspension.suspended_by,
       (SELECT count(*) FROM alive WHERE names.queue_name = ANY (alive.queues)) AS workers
  FROM names
 CROSS JOIN LATERAL (
       SELECT count(*) AS looked_at,
              count(*) FILTER (WHERE status = 'PENDING' AND enqueued_at <= now()) AS pending,
              count(*) FILTER (WHERE status = 'PENDING' AND enqueued_at > now()) AS scheduled,
              count(*) FILTER (WHERE status = 'CLAIMED') AS claimed,
              count(*) FILTER (WHERE status = 'RUNNING') AS running,
              extract(epoch FROM now())::double precision - extract(epoch FROM
                  min(enqueued_at) FILTER (WHERE status = 'PENDING' AND enqueued_at <= now()))::double precision AS oldest
         FROM (SELECT status, enqueued_at FROM horsies_tasks_live AS task
                WHERE task.queue_name = names.queue_name AND task.priority <> 0 AND task.parked_at IS NULL
                ORDER BY task.queue_name, is_async, rate_key, priority, enqueued_at, id
                LIMIT %(most)s) AS first) AS counted
  LEFT JOIN LATERAL (
       SELECT pending, oldest_pending_seconds FROM horsies_depths AS depth
        WHERE depth.queue_name = names.queue_name AND minute > now() - interval '5 minutes'
        ORDER BY minute DESC LIMIT 1) AS sounding ON counted.looked_at >= %(most)s
  LEFT JOIN limits USING (queue_name)
  LEFT JOIN parked USING (queue_name)
  LEFT JOIN horsies_suspensions AS suspension USING (queue_name)
 ORDER BY names.queue_name;

-- name: failures_by_queue
SELECT left(queue_name, 300), count(*)
  FROM (SELECT queue_name FROM horsies_tasks_history WHERE status = 'FAILED'
         ORDER BY terminal_at DESC, id DESC LIMIT %(most)s) AS latest GROUP BY 1 ORDER BY 1;

-- name: workers
SELECT worker.worker_id::text AS worker_id, worker.hostname, worker.pid,
       CASE WHEN worker.dead_at IS NOT NULL OR worker.lease_expires_at < now() THEN 'dead' ELSE worker.state END AS state,
       worker.queues, worker.processes, worker.started_at, worker.last_beat_at,
       latest.memory_usage_mb, latest.children_memory_mb, latest.cpu_percent, latest.tasks_running,
       coalesce(latest.children, '[]') AS children
  FROM horsies_workers AS worker
  LEFT JOIN LATERAL (SELECT memory_usage_mb, children_memory_mb, cpu_percent, tasks_running, children
                       FROM horsies_worker_states AS state
                      WHERE state.worker_id = worker.worker_id ORDER BY snapshot_at DESC LIMIT 1) AS latest ON true
 ORDER BY worker.dead_at IS NOT NULL OR worker.lease_expires_at < now(), worker.started_at, worker.worker_id;

-- name: worker_snapshots
SELECT snapshot_at, state, hostname, pid, processes, queues, tasks_running, tasks_claimed, memory_usage_mb, memory_percent,
       children_memory_mb, cpu_percent
  FROM horsies_worker_states WHERE worker_id = %(worker_id)s
 ORDER BY snapshot_at DESC LIMIT %(limit)s;

-- name: running_tasks
-- List running tasks. No index names them, so the candidates are the tasks in each worker's latest snapshot, and the first
-- 1000 of each queue in claim order, which is where claimed tasks are.
{live_queues}, candidates AS (
    SELECT unnest(latest.current_task_ids) AS id FROM horsies_workers AS worker
     CROSS JOIN LATERAL (SELECT current_task_ids FROM horsies_worker_states AS state
                          WHERE state.worker_id = worker.worker_id ORDER BY snapshot_at DESC LIMIT 1) AS latest
     WHERE worker.dead_at IS NULL
    UNION
    SELECT head.id FROM live
     CROSS JOIN LATERAL (SELECT task.id FROM horsies_tasks_live AS task
                          WHERE task.queue_name = live.queue_name AND task.priority <> 0 AND task.parked_at IS NULL
                          ORDER BY task.queue_name, is_async, rate_key, priority, enqueued_at, id LIMIT 1000) AS head
)
SELECT task.id::text AS task_id, left(task.task_name, 300) AS task_name, left(task.queue_name, 300) AS queue_name,
       task.claimed_by_worker_id::text AS worker_id, task.worker_pid AS pid, task.started_at,
       (SELECT memory_mb FROM horsies_heartbeats AS beat WHERE beat.task_id = task.id AND beat.role = 'runner'
         ORDER BY sent_at DESC LIMIT 1) AS memory_mb
  FROM candidates
 CROSS JOIN LATERAL (SELECT * FROM horsies_tasks_live AS task WHERE task.id = candidates.id LIMIT 1) AS task
 WHERE task.status = 'RUNNING'
 ORDER BY task.started_at, task.id LIMIT %(limit)s;

-- fragment: workflow_columns
id::text AS workflow_id, left(name, 300) AS name, status, sent_at, started_at, completed_at,
left(definition_key, 300) AS definition_key, parent_workflow_id::text AS parent_workflow_id, left(error, 2000) AS error

-- name: workflows
-- List workflows, the newest first. The statement reads at most `most` rows and returns those that match the filter.
SELECT {workflow_columns}, nodes.total, nodes.completed, nodes.failed, nodes.skipped, nodes.running
  FROM (SELECT * FROM (SELECT * FROM horsies_workflows WHERE id < %(before)s ORDER BY id DESC LIMIT %(most)s) AS newest
         WHERE (%(status)s::text IS NULL OR status = %(status)s) AND (%(name)s::text IS NULL OR name = %(name)s)
           AND (%(parts)s OR parent_workflow_id IS NULL)
         ORDER BY newest.id DESC LIMIT %(limit)s) AS flow
 CROSS JOIN LATERAL (
       SELECT count(*) AS total, count(*) FILTER (WHERE status = 'COMPLETED') AS completed,
              count(*) FILTER (WHERE status = 'FAILED') AS failed,
              count(*) FILTER (WHERE status = 'SKIPPED') AS skipped,
              count(*) FILTER (WHERE status IN ('ENQUEUED', 'RUNNING')) AS running
         FROM horsies_workflow_tasks AS node WHERE node.workflow_id = flow.id) AS nodes
 ORDER BY flow.id DESC;

-- name: workflow
SELECT {workflow_columns}, deadline_at, on_error FROM horsies_workflows WHERE id = %(id)s;

-- name: nodes
SELECT node.task_index, left(node.node_id, 300) AS node_id, left(node.kind, 300) AS kind, left(node.task_name, 300) AS name,
       {node_status}, node.task_id::text AS task_id, node.sub_workflow_id::text AS sub_workflow_id,
       ARRAY (SELECT unnest(node.dependencies)) AS dependencies,
       coalesce(task.started_at, node.started_at) AS started_at, node.completed_at, node.due_at
  FROM horsies_workflow_tasks AS node {task_of_node}
 WHERE node.workflow_id = %(id)s
 ORDER BY node.task_index LIMIT %(limit)s;

-- fragment: takers
(SELECT coalesce(json_agg(json_build_array(left(taker.task_name, 300), left(source.key, 300))), '[]')
   FROM horsies_workflow_tasks AS taker
  CROSS JOIN json_each_text(CASE WHEN json_typeof(taker.args_from) = 'object' THEN taker.args_from END) AS source
  WHERE taker.workflow_id = node.workflow_id AND taker.task_index = ANY (node.dependents) AND taker.kind = 'task'
    AND source.value = node.task_index::text) AS takers

-- name: signals
-- List the signals that workflows wait for, the longest wait first, of the newest `most` nodes that wait for signals. `takers`
-- are the tasks that take the value, each with its parameter.
SELECT node.workflow_id::text AS workflow_id, node.workflow_name, node.workflow_status, node.task_index,
       left(node.node_id, 300) AS node_id, left(node.task_name, 300) AS signal, node.started_at, node.due_at, {takers}
  FROM (SELECT node.*, left(flow.name, 300) AS workflow_name, flow.status AS workflow_status
          FROM (SELECT * FROM horsies_workflow_tasks WHERE kind = 'signal'
                 ORDER BY workflow_id DESC LIMIT %(most)s) AS node
          JOIN horsies_workflows AS flow ON flow.id = node.workflow_id
         WHERE node.status = 'RUNNING' AND node.result IS NULL AND flow.status IN ('RUNNING', 'PAUSED')
         ORDER BY node.started_at, node.workflow_id LIMIT %(limit)s) AS node
 ORDER BY node.started_at, node.workflow_id;

-- name: signal_takers
-- Return the tasks that take the value of a signal of a workflow, each with its parameter.
SELECT {takers} FROM horsies_workflow_tasks AS node
 WHERE node.workflow_id = %(id)s AND node.kind = 'signal' AND node.task_name = %(name)s;

-- name: actions
SELECT acted_at, left(actor, 300) AS actor, left(action, 300) AS action, left(subject, 2000) AS subject, tasks
  FROM horsies_actions ORDER BY id DESC LIMIT %(limit)s;

-- name: change_marker
-- Return the server's position in its write-ahead log. While that stays the same, nothing has changed.
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END)::text;

-- name: replica_lag
-- By how many seconds a replica is behind, and whether it lacks the position up to which a viewer has written. A replica that has
-- replayed everything is up to date while it receives from its primary. Otherwise its state is that of its last transaction.
SELECT coalesce(CASE WHEN NOT pg_is_in_recovery() THEN 0
                     WHEN EXISTS (SELECT FROM pg_stat_wal_receiver)
                          AND pg_last_wal_receive_lsn() <= pg_last_wal_replay_lsn() THEN 0
                     ELSE greatest(0, extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()))
                END, 0)::double precision AS seconds,
       coalesce(pg_is_in_recovery() AND pg_last_wal_replay_lsn() < %(written_to)s::pg_lsn, false) AS is_missing;
