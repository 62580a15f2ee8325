-- name: send
-- Store new tasks. One text parameter holds all rows, so that every driver, ours or the caller's, can run it.
-- A row whose id or unique key is taken is left out of the answer: see `taken`.
INSERT INTO horsies_tasks_live (id, task_name, queue_name, is_async, priority, kwargs, enqueued_at, good_until,
                                timeout_ms, max_retries, task_options, unique_key, tags, rate_key)
SELECT id, task_name, queue_name, is_async, priority, kwargs,
       coalesce(eta, now() + make_interval(secs => coalesce(delay_seconds, 0))), good_until,
       timeout_ms, max_retries, task_options, unique_key, tags, coalesce(rate_key, '')
  FROM json_to_recordset(CAST(%(rows)s AS json)) AS asked (
       id uuid, task_name text, queue_name text, is_async boolean, priority smallint, kwargs text,
       eta timestamptz, delay_seconds double precision, good_until timestamptz, timeout_ms integer,
       max_retries smallint, task_options text, unique_key text, tags text[], rate_key text)
ON CONFLICT DO NOTHING
RETURNING CAST(id AS text);

-- name: send_one
-- The same for one task without an idempotency key: making and reading JSON takes a fifth of a send.
INSERT INTO horsies_tasks_live (id, task_name, queue_name, is_async, priority, kwargs, enqueued_at, good_until,
                                timeout_ms, max_retries, task_options, unique_key, tags, rate_key)
VALUES (CAST(CAST(%(id)s AS text) AS uuid), %(task_name)s, %(queue_name)s, CAST(CAST(%(is_async)s AS text) AS boolean),
        CAST(CAST(%(priority)s AS text) AS smallint), %(kwargs)s,
        coalesce(CAST(CAST(%(eta)s AS text) AS timestamptz),
                 now() + make_interval(secs => coalesce(CAST(CAST(%(delay_seconds)s AS text) AS double precision), 0))),
        CAST(CAST(%(good_until)s AS text) AS timestamptz), CAST(CAST(%(timeout_ms)s AS text) AS integer),
        CAST(CAST(%(max_retries)s AS text) AS smallint), %(task_options)s, %(unique_key)s,
        CAST(CAST(%(tags)s AS text) AS text[]), %(rate_key)s)
ON CONFLICT DO NOTHING
RETURNING CAST(id AS text);

-- name: copy
-- The same for many tasks of one kind, none of them with a key or a delay.
COPY horsies_tasks_live (id, kwargs, task_name, queue_name, is_async, priority, enqueued_at, good_until, timeout_ms,
                         max_retries, task_options, tags, rate_key) FROM STDIN;

-- name: send_keyed
-- The same for tasks with an idempotency key, which is reserved first.
WITH asked AS (
    SELECT * FROM json_to_recordset(CAST(%(rows)s AS json)) AS asked (
        id uuid, task_name text, queue_name text, is_async boolean, priority smallint, kwargs text,
        eta timestamptz, delay_seconds double precision, good_until timestamptz, timeout_ms integer,
        max_retries smallint, task_options text, unique_key text, tags text[], rate_key text,
        idempotency_key text, enqueue_sha text)
), reserved AS (
    INSERT INTO horsies_idempotency_keys (idempotency_key, task_id, enqueue_sha)
    SELECT idempotency_key, id, enqueue_sha FROM asked WHERE idempotency_key IS NOT NULL
    ON CONFLICT (idempotency_key) DO NOTHING
    RETURNING task_id
)
INSERT INTO horsies_tasks_live (id, task_name, queue_name, is_async, priority, kwargs, enqueued_at, good_until,
                                timeout_ms, max_retries, task_options, unique_key, tags, rate_key)
SELECT id, task_name, queue_name, is_async, priority, kwargs,
       coalesce(eta, now() + make_interval(secs => coalesce(delay_seconds, 0))), good_until,
       timeout_ms, max_retries, task_options, unique_key, tags, coalesce(rate_key, '')
  FROM asked
 WHERE idempotency_key IS NULL OR id IN (SELECT task_id FROM reserved)
ON CONFLICT DO NOTHING
RETURNING CAST(id AS text);

-- name: wake
-- Notify the workers of these queues in any case: the caller's transaction may commit long after the insert looked
-- whether a worker waits.
SELECT pg_notify(horsies_queue_channel(queue_name), '')
  FROM json_array_elements_text(CAST(%(queues)s AS json)) AS touched (queue_name);

-- name: taken
-- For each row that `send` left out: the task that holds its idempotency key, its unique key or its very id.
SELECT CAST(asked.id AS text), CAST(key.task_id AS text), key.enqueue_sha, CAST(twin.id AS text),
       CAST(same.id AS text),
       same.task_name IS NOT DISTINCT FROM asked.task_name
                AND same.queue_name IS NOT DISTINCT FROM asked.queue_name
                AND same.kwargs IS NOT DISTINCT FROM asked.kwargs
  FROM json_to_recordset(CAST(%(rows)s AS json)) AS asked (
           id uuid, task_name text, queue_name text, kwargs text, unique_key text, idempotency_key text)
  LEFT JOIN horsies_idempotency_keys AS key ON key.idempotency_key = asked.idempotency_key
  LEFT JOIN horsies_tasks_live AS twin ON twin.unique_key = asked.unique_key
  LEFT JOIN horsies_tasks AS same ON same.id = asked.id;

-- name: finished
-- Which of these ids have ended already: a send repeated after a lost reply must not start them again.
SELECT id FROM horsies_tasks WHERE NOT live AND id = ANY (%(ids)s::uuid[]) AND terminal_at >= %(since)s;

-- name: lock_all
-- All claims of the cluster take turns from here to the end of the transaction. A statement of its own, so that the one
-- after it sees what the claim before us has written.
SELECT pg_advisory_xact_lock(7240118056);

-- name: lock_queues
-- The same for claims that share one of these queues; always in the same order, so that no two wait for each other.
SELECT pg_advisory_xact_lock(key)
  FROM (SELECT DISTINCT hashtextextended(queue_name, 7240118057) AS key
          FROM unnest(%(queues)s::text[]) AS capped (queue_name)
         ORDER BY key) AS sorted;

-- name: exchange
-- The hot path in one round trip: end tasks that returned, and take the most urgent due ones instead.
--
-- A task that is no longer ours is not ended: its result is dropped. Nor is one that was asked to stop: `fail` does that.
-- Lines of tasks (those of one queue and kind) are
-- read in the order given, each up to its quota, from the key where the last claim ended, so that dead rows before it
-- are not walked again. The first rows of each pool go straight to the children whose pids are given, the idle ones
-- first, and are started here and now. The rest wait in the worker as CLAIMED, and so do tasks with an expiry that would
-- have to queue: it is looked at again when they start. The first row of the answer has no id; its claim_seq says how
-- many tasks were ended.
--
-- Here and below, rows are found by an array of their ids, and what is said of each in an object, under its id and
-- claim_seq. A join would be turned round, and walk the whole table, by a plan made when there was little in it or nothing
-- ran. `priority <> 0`, true of every task, is what lets a statement use the index for claims, and no other may.
WITH said AS MATERIALIZED (
    SELECT CAST(%(completed)s AS jsonb) AS of
), ended AS (
    UPDATE horsies_tasks AS task
       SET live = false, status = 'COMPLETED', result = (SELECT of FROM said) ->> (task.id || '/' || task.claim_seq),
           completed_at = now(), terminal_at = now()
     WHERE task.live AND task.id = ANY (ARRAY (SELECT CAST(left(call, 36) AS uuid) FROM said, jsonb_object_keys(of) AS call))
       AND (SELECT of FROM said) ? (task.id || '/' || task.claim_seq) AND task.status = 'RUNNING'
       AND task.cancel_asked_at IS NULL
    RETURNING task.id, task.awaited
), told AS (
    SELECT count(*) AS ended, count(CASE WHEN awaited THEN pg_notify('task_done', id::text) END) AS notified FROM ended
), pool AS MATERIALIZED (
    -- A worker that was declared dead, and does not know yet, takes nothing more.
    SELECT * FROM json_to_recordset(CAST(%(pools)s AS json)) AS pool (pool integer, room integer, idle integer, pids integer[])
     WHERE NOT EXISTS (SELECT FROM horsies_workers WHERE worker_id = %(worker_id)s AND dead_at IS NOT NULL)
), next AS MATERIALIZED (
    SELECT found.*, row_number() OVER () AS turn
      FROM pool
     CROSS JOIN LATERAL (
           SELECT task.*, row_number() OVER () AS seat
             FROM (SELECT task.id, task.good_until, line.pool
                     FROM ROWS FROM (json_to_recordset(CAST(%(lines)s AS json))
                                     AS (pool integer, queue_name text, is_async boolean, quota integer,
                                         priority smallint, enqueued_at timestamptz, id uuid))
                          WITH ORDINALITY AS line (pool, queue_name, is_async, quota, priority, enqueued_at, id, place)
                    CROSS JOIN LATERAL (
                          SELECT id, good_until FROM horsies_tasks_live AS task
                           WHERE task.queue_name = line.queue_name AND task.is_async = line.is_async
                             AND task.rate_key = '' AND task.priority <> 0
                             AND (task.priority, task.enqueued_at, task.id) > (line.priority, line.enqueued_at, line.id)
                             AND task.enqueued_at <= now() AND task.status = 'PENDING'
                             AND (task.good_until IS NULL OR task.good_until > now())
                           ORDER BY task.priority, task.enqueued_at, task.id
                           LIMIT line.quota
                             FOR UPDATE SKIP LOCKED) AS task
                    WHERE line.pool = pool.pool
                    ORDER BY line.place
                    LIMIT pool.room) AS task) AS found
     LIMIT %(limit)s
), placed AS (
    SELECT next.id, next.turn, CASE WHEN seat <= pool.idle OR good_until IS NULL THEN pool.pids[seat] END AS pid
      FROM next JOIN pool USING (pool)
), seating AS MATERIALIZED (
    SELECT jsonb_object_agg(id, jsonb_build_array(turn, pid)) AS of FROM placed
), claimed AS (
    UPDATE horsies_tasks_live AS task
       SET status = CASE WHEN (SELECT of FROM seating) -> task.id::text ->> 1 IS NULL THEN 'CLAIMED' ELSE 'RUNNING' END,
           claimed_at = now(),
           claim_expires_at = now() + make_interval(secs => %(lease_seconds)s),
           started_at = CASE WHEN (SELECT of FROM seating) -> task.id::text ->> 1 IS NOT NULL THEN now() END,
           claim_seq = task.claim_seq + 1,
           claimed_by_worker_id = %(worker_id)s,
           worker_pid = ((SELECT of FROM seating) -> task.id::text ->> 1)::integer,
           worker_hostname = %(hostname)s,
           worker_process_name = %(process_name)s
     WHERE task.id = ANY (ARRAY (SELECT id FROM placed))
    RETURNING ((SELECT of FROM seating) -> task.id::text -> 0)::integer AS turn, task.id, task.claim_seq,
              task.task_name, task.args, task.kwargs, task.queue_name,
              task.is_async, task.priority, task.enqueued_at, task.worker_pid, task.timeout_ms, task.retry_count, task.max_retries,
              task.crash_count, task.good_until IS NOT NULL, task.task_options, task.workflow_id, task.workflow_index,
              task.earlier_attempts
)
SELECT 0 AS turn, NULL::uuid AS id, told.ended::integer AS claim_seq, NULL AS task_name, NULL AS args, NULL AS kwargs,
       NULL AS queue_name, NULL::boolean, NULL::smallint, NULL::timestamptz, NULL::integer, NULL::integer, NULL::smallint,
       NULL::smallint, NULL::smallint, NULL::boolean, NULL, NULL::uuid, NULL::integer, NULL::smallint
  FROM told
UNION ALL
SELECT * FROM claimed
 ORDER BY turn;

-- name: exchange_within
-- The same within limits of the cluster, of a queue or of a rate: what is found is cut to what they leave, and what this
-- worker then holds is written down. A rate limit's tasks stand in lines of their own. It costs a third more than the
-- plain exchange, which is why there are two.
WITH said AS MATERIALIZED (
    SELECT CAST(%(completed)s AS jsonb) AS of
), ended AS (
    UPDATE horsies_tasks AS task
       SET live = false, status = 'COMPLETED', result = (SELECT of FROM said) ->> (task.id || '/' || task.claim_seq),
           completed_at = now(), terminal_at = now()
     WHERE task.live AND task.id = ANY (ARRAY (SELECT CAST(left(call, 36) AS uuid) FROM said, jsonb_object_keys(of) AS call))
       AND (SELECT of FROM said) ? (task.id || '/' || task.claim_seq) AND task.status = 'RUNNING'
       AND task.cancel_asked_at IS NULL
    RETURNING task.id, task.awaited
), told AS (
    SELECT count(*) AS ended, count(CASE WHEN awaited THEN pg_notify('task_done', id::text) END) AS notified FROM ended
), pool AS MATERIALIZED (
    -- A worker that was declared dead, and does not know yet, takes nothing more.
    SELECT * FROM json_to_recordset(CAST(%(pools)s AS json)) AS pool (pool integer, room integer, idle integer, pids integer[])
     WHERE NOT EXISTS (SELECT FROM horsies_workers WHERE worker_id = %(worker_id)s AND dead_at IS NOT NULL)
), cap AS MATERIALIZED (
    SELECT queue_name, mine, recorded,
           greatest(0, most - mine - (SELECT coalesce(sum(tasks), 0) FROM horsies_in_flight AS other
                                       WHERE other.queue_name = cap.queue_name
                                         AND other.worker_id <> %(worker_id)s)) AS remaining
      FROM json_to_recordset(CAST(%(caps)s AS json)) AS cap (queue_name text, most integer, mine integer, recorded integer)
), allowance AS MATERIALIZED (
    -- By name, so that finding one does not take a walk over all.
    SELECT jsonb_object_agg(queue_name, remaining) AS of FROM cap
), rate AS MATERIALIZED (
    SELECT rate_key, seconds, greatest(spent_until, now() - make_interval(secs => burst * seconds)) AS spent_until,
           CASE WHEN seconds > 0 THEN
               greatest(0, least(burst, floor(extract(epoch FROM now() - greatest(spent_until, now() - make_interval(secs => burst * seconds)))
                                  / seconds + 1e-6)))::integer END AS allowed
      FROM horsies_rates
     WHERE rate_key = ANY (%(rates)s::text[])
     ORDER BY rate_key
       FOR UPDATE
), next AS MATERIALIZED (
    SELECT found.*, row_number() OVER () AS number
      FROM pool
     CROSS JOIN LATERAL (
           SELECT task.id, task.good_until, line.queue_name, line.rate_key, line.pool, line.place
             FROM ROWS FROM (json_to_recordset(CAST(%(lines)s AS json))
                             AS (pool integer, queue_name text, is_async boolean, rate_key text, quota integer,
                                 priority smallint, enqueued_at timestamptz, id uuid))
                  WITH ORDINALITY AS line (pool, queue_name, is_async, rate_key, quota, priority, enqueued_at, id, place)
             LEFT JOIN rate ON rate.rate_key = line.rate_key
            CROSS JOIN LATERAL (
                  SELECT id, good_until FROM horsies_tasks_live AS task
                   WHERE task.queue_name = line.queue_name AND task.is_async = line.is_async
                     AND task.rate_key = line.rate_key AND task.priority <> 0
                     AND (task.priority, task.enqueued_at, task.id) > (line.priority, line.enqueued_at, line.id)
                     AND task.enqueued_at <= now() AND task.status = 'PENDING'
                     AND (task.good_until IS NULL OR task.good_until > now())
                   ORDER BY task.priority, task.enqueued_at, task.id
                   LIMIT least(line.quota, (SELECT (of ->> line.queue_name)::integer FROM allowance), rate.allowed)
                     FOR UPDATE SKIP LOCKED) AS task
            WHERE line.pool = pool.pool
            ORDER BY line.place
            LIMIT pool.room) AS found
), within AS (
    SELECT next.*, row_number() OVER (ORDER BY place, number) AS turn
      FROM (SELECT next.*, row_number() OVER (PARTITION BY queue_name ORDER BY place, number) AS of_queue,
                   row_number() OVER (PARTITION BY rate_key ORDER BY place, number) AS of_rate
              FROM next) AS next
      LEFT JOIN rate USING (rate_key)
     WHERE of_queue <= least(%(batch)s, (SELECT (of ->> queue_name)::integer FROM allowance))
       AND of_rate <= coalesce(rate.allowed, of_rate)
), placed AS (
    SELECT id, rate_key, turn, pid
      FROM (SELECT within.id, rate_key, turn,
                   CASE WHEN seat <= pool.idle OR good_until IS NULL THEN pool.pids[seat] END AS pid
              FROM (SELECT *, row_number() OVER (PARTITION BY pool ORDER BY turn) AS seat FROM within
                     WHERE turn <= least(%(limit)s, (SELECT (of ->> '')::integer FROM allowance))) AS within
              JOIN pool USING (pool)) AS seated
     WHERE pid IS NOT NULL OR rate_key = ''
), spent AS (
    UPDATE horsies_rates
       SET spent_until = rate.spent_until + make_interval(secs => taken.starts * rate.seconds)
      FROM rate JOIN (SELECT rate_key, count(*) AS starts FROM placed GROUP BY rate_key) AS taken USING (rate_key)
     WHERE horsies_rates.rate_key = rate.rate_key
), seating AS MATERIALIZED (
    SELECT jsonb_object_agg(id, jsonb_build_array(turn, pid)) AS of FROM placed
), claimed AS (
    UPDATE horsies_tasks_live AS task
       SET status = CASE WHEN (SELECT of FROM seating) -> task.id::text ->> 1 IS NULL THEN 'CLAIMED' ELSE 'RUNNING' END,
           claimed_at = now(),
           claim_expires_at = now() + make_interval(secs => %(lease_seconds)s),
           started_at = CASE WHEN (SELECT of FROM seating) -> task.id::text ->> 1 IS NOT NULL THEN now() END,
           claim_seq = task.claim_seq + 1,
           claimed_by_worker_id = %(worker_id)s,
           worker_pid = ((SELECT of FROM seating) -> task.id::text ->> 1)::integer,
           worker_hostname = %(hostname)s,
           worker_process_name = %(process_name)s
     WHERE task.id = ANY (ARRAY (SELECT id FROM placed))
    RETURNING ((SELECT of FROM seating) -> task.id::text -> 0)::integer AS turn, task.id, task.claim_seq,
              task.task_name, task.args, task.kwargs, task.queue_name,
              task.is_async, task.priority, task.enqueued_at, task.worker_pid, task.timeout_ms, task.retry_count, task.max_retries,
              task.crash_count, task.good_until IS NOT NULL, task.task_options, task.workflow_id, task.workflow_index,
              task.earlier_attempts
), started AS MATERIALIZED (
    SELECT jsonb_object_agg(coalesce(queue_name, ''), tasks) AS of
      FROM (SELECT queue_name, count(*) AS tasks FROM claimed WHERE worker_pid IS NOT NULL
             GROUP BY ROLLUP (queue_name)) AS started
), counted AS MATERIALIZED (
    SELECT queue_name, recorded, mine + coalesce((SELECT (of ->> queue_name)::integer FROM started), 0) AS tasks
      FROM cap
), noted AS (
    INSERT INTO horsies_in_flight AS known (queue_name, worker_id, tasks)
    SELECT queue_name, %(worker_id)s, tasks FROM counted WHERE tasks <> recorded
    ON CONFLICT (queue_name, worker_id) DO UPDATE SET tasks = excluded.tasks
), woken AS (
    -- What we leave to others, those who sleep would not notice. When it is not known what was said last, it may be some.
    SELECT count(pg_notify(horsies_queue_channel(line.queue_name), '')) AS queues
      FROM (SELECT DISTINCT line.queue_name
              FROM counted CROSS JOIN horsies_workers AS worker CROSS JOIN unnest(worker.queues) AS line (queue_name)
             WHERE (counted.tasks < counted.recorded OR counted.recorded < 0) AND counted.queue_name IN ('', line.queue_name)
               AND (worker.waiting OR worker.waiting_async) AND worker.lease_expires_at > now()
               AND worker.worker_id <> %(worker_id)s) AS line
)
SELECT 0 AS turn, NULL::uuid AS id, told.ended::integer AS claim_seq, NULL AS task_name, NULL AS args, NULL AS kwargs,
       NULL AS queue_name, NULL::boolean, NULL::smallint, NULL::timestamptz, NULL::integer, NULL::integer, NULL::smallint,
       NULL::smallint, NULL::smallint, NULL::boolean, NULL, NULL::uuid, NULL::integer, NULL::smallint
  FROM told CROSS JOIN woken
UNION ALL
SELECT * FROM claimed
 ORDER BY turn;

-- name: refresh
-- Results wait behind this, so it does not wait for a lock: it can be done another time.
SELECT horsies_refresh_statistics() FROM (SELECT set_config('lock_timeout', '200ms', true)) AS in_a_hurry;

-- name: start
-- Prefetched tasks leave for a child: only those that are still ours and still in time.
WITH said AS MATERIALIZED (
    SELECT CAST(%(starts)s AS jsonb) AS of
)
UPDATE horsies_tasks_live AS task
   SET status = 'RUNNING', started_at = now(),
       worker_pid = ((SELECT of FROM said) -> (task.id || '/' || task.claim_seq))::integer
 WHERE task.id = ANY (ARRAY (SELECT CAST(left(call, 36) AS uuid) FROM said, jsonb_object_keys(of) AS call))
   AND (SELECT of FROM said) ? (task.id || '/' || task.claim_seq) AND task.status = 'CLAIMED'
   AND (task.good_until IS NULL OR task.good_until > now())
RETURNING task.id;

-- name: fail
-- End attempts that failed. With a delay the task goes back to PENDING, unless it would be due too late; else, and
-- without one, it is FAILED. One that was asked to stop is CANCELLED, however it failed, and so is one whose `snooze` comes
-- too late; what is `asked` is nothing but that. A snooze is no attempt. When a task has failed for good, the task that it
-- names for that is sent. One that is missing from the answer is no longer ours.
WITH outcome AS (
    SELECT said.*, task.task_name, task.queue_name, task.started_at, task.retry_count, task.earlier_attempts,
           task.claimed_by_worker_id, task.worker_hostname, task.worker_pid, task.worker_process_name,
           now() + make_interval(secs => said.delay_seconds) AS due,
           said.delay_seconds IS NOT NULL AND task.cancel_asked_at IS NULL
               AND (task.good_until IS NULL OR said.snoozed
                    OR now() + make_interval(secs => said.delay_seconds) < task.good_until) AS again,
           task.cancel_asked_at IS NOT NULL AS stopped
      FROM (SELECT DISTINCT ON (id, claim_seq) *
              FROM json_to_recordset(CAST(%(failures)s AS json)) AS said (
                       id uuid, claim_seq integer, result text, error_code text, error_message text,
                       failed_reason text, delay_seconds double precision, crashed boolean, snoozed boolean,
                       asked boolean, on_failure text)) AS said
     CROSS JOIN LATERAL (SELECT * FROM horsies_tasks_live AS task
                          WHERE task.id = said.id AND task.claim_seq = said.claim_seq AND task.status = 'RUNNING'
                            AND (task.cancel_asked_at IS NOT NULL OR NOT said.asked)
                            FOR UPDATE) AS task
), kept AS (
    INSERT INTO horsies_attempts (task_id, claim_seq, attempt, outcome, started_at, error_code, error_message,
                                  failed_reason, worker_id, worker_hostname, worker_pid, worker_process_name, traceback)
    SELECT id, claim_seq, earlier_attempts + retry_count + 1, 'FAILED', started_at, error_code, error_message,
           failed_reason, claimed_by_worker_id, worker_hostname, worker_pid, worker_process_name,
           result::json -> 'err' -> 'exception' ->> 'traceback'
      FROM outcome WHERE again AND NOT snoozed
), ended AS (
    UPDATE horsies_tasks AS task
       SET live = again,
           status = CASE WHEN again THEN 'PENDING' WHEN stopped OR snoozed THEN 'CANCELLED' ELSE 'FAILED' END,
           claim_seq = task.claim_seq + again::int,
           crash_count = task.crash_count + outcome.crashed::int,
           retry_count = task.retry_count + (again AND NOT snoozed)::int,
           enqueued_at = CASE WHEN again THEN outcome.due ELSE task.enqueued_at END,
           unknown_since = NULL,
           next_retry_at = CASE WHEN again THEN outcome.due END,
           claimed_by_worker_id = CASE WHEN again THEN NULL ELSE task.claimed_by_worker_id END,
           claimed_at = CASE WHEN again THEN NULL ELSE task.claimed_at END,
           claim_expires_at = CASE WHEN again THEN NULL ELSE task.claim_expires_at END,
           started_at = CASE WHEN again THEN NULL ELSE task.started_at END,
           result = CASE WHEN again THEN NULL WHEN stopped THEN %(cancelled)s ELSE outcome.result END,
           error_code = CASE WHEN again THEN NULL WHEN stopped THEN 'TASK_CANCELLED' ELSE outcome.error_code END,
           failed_reason = CASE WHEN NOT again AND NOT stopped THEN outcome.failed_reason END,
           failed_at = CASE WHEN NOT again AND NOT stopped AND NOT snoozed THEN now() END,
           terminal_at = CASE WHEN again THEN NULL ELSE now() END
      FROM outcome
     WHERE task.live AND task.id = outcome.id AND task.id = ANY (ARRAY (SELECT id FROM outcome))
    RETURNING task.id, task.awaited, again, task.queue_name, task.status, task.task_name, task.priority,
              outcome.error_code, outcome.error_message, outcome.on_failure
), sent AS (
    -- As the workers know that task; it names none for its own failure, so that failures cannot go round in circles.
    INSERT INTO horsies_tasks_live (id, task_name, queue_name, is_async, priority, kwargs, timeout_ms, max_retries,
                                    task_options, rate_key)
    SELECT horsies_new_id(), ended.on_failure, coalesce(known.queue_name, ended.queue_name),
           coalesce(known.is_async, false), coalesce(known.priority, ended.priority),
           json_build_object('task_id', ended.id, 'task_name', ended.task_name,
                             'error_code', coalesce(ended.error_code, ''),
                             'message', coalesce(ended.error_message, ''))::text,
           known.timeout_ms, coalesce(known.max_retries, 0), (known.task_options::jsonb - 'on_failure')::text,
           coalesce(known.rate_key, '')
      FROM ended LEFT JOIN horsies_task_definitions AS known ON known.task_name = ended.on_failure
     WHERE ended.status = 'FAILED' AND ended.on_failure IS NOT NULL
), woken AS (
    SELECT count(pg_notify(horsies_queue_channel(queue_name), ''))
      FROM (SELECT DISTINCT queue_name FROM ended WHERE again) AS touched
     WHERE EXISTS (SELECT FROM horsies_workers AS worker
                    WHERE (worker.waiting OR worker.waiting_async) AND worker.lease_expires_at > now()
                      AND touched.queue_name = ANY (worker.queues))
)
SELECT id, again, CASE WHEN awaited AND NOT again THEN pg_notify('task_done', id::text) END
  FROM ended CROSS JOIN woken;

-- name: release
-- Give back what this worker holds and has not started, or was never told that it holds: all but the tasks named. One
-- that it held once, and was given again by a reply that was lost, has another number by now and goes back, too. One that
-- was asked to stop does not go back: see `unheld`.
WITH freed AS (
    UPDATE horsies_tasks_live AS task
       SET status = 'PENDING', claim_seq = task.claim_seq + 1, claimed_by_worker_id = NULL, claimed_at = NULL,
           claim_expires_at = NULL, started_at = NULL, worker_pid = NULL
     WHERE task.claimed_by_worker_id = %(worker_id)s AND task.cancel_asked_at IS NULL
       AND (task.id, task.claim_seq) NOT IN (SELECT id, claim_seq FROM json_to_recordset(CAST(%(keep)s AS json))
                                                 AS held (id uuid, claim_seq integer))
    RETURNING task.id, task.queue_name
), woken AS (
    SELECT count(pg_notify(horsies_queue_channel(queue_name), ''))
      FROM (SELECT DISTINCT queue_name FROM freed) AS touched
)
SELECT id FROM freed CROSS JOIN woken;

-- name: give_back
-- Give back tasks that count as started and were never begun: their worker died before their turn came.
WITH said AS MATERIALIZED (
    SELECT CAST(%(calls)s AS jsonb) AS of
), freed AS (
    UPDATE horsies_tasks_live AS task
       SET status = 'PENDING', claim_seq = task.claim_seq + 1, claimed_by_worker_id = NULL, claimed_at = NULL,
           claim_expires_at = NULL, started_at = NULL, worker_pid = NULL
     WHERE task.id = ANY (ARRAY (SELECT CAST(left(call, 36) AS uuid) FROM said, jsonb_object_keys(of) AS call))
       AND (SELECT of FROM said) ? (task.id || '/' || task.claim_seq) AND task.status = 'RUNNING'
       AND task.cancel_asked_at IS NULL
    RETURNING task.id, task.queue_name
), woken AS (
    SELECT count(pg_notify(horsies_queue_channel(queue_name), ''))
      FROM (SELECT DISTINCT queue_name FROM freed) AS touched
)
SELECT id FROM freed CROSS JOIN woken;

-- name: put_off
-- Give back tasks that this worker does not know, for one that may, as long as there is time; in longer and longer spells.
-- Those that are missing from the answer have waited long enough, or are no longer ours.
WITH said AS MATERIALIZED (
    SELECT CAST(%(calls)s AS jsonb) AS of
), freed AS (
    UPDATE horsies_tasks_live AS task
       SET status = 'PENDING', claim_seq = task.claim_seq + 1, claimed_by_worker_id = NULL, claimed_at = NULL,
           claim_expires_at = NULL, started_at = NULL, worker_pid = NULL,
           unknown_since = coalesce(task.unknown_since, task.enqueued_at),
           enqueued_at = now() + least(
               greatest(now() - coalesce(task.unknown_since, task.enqueued_at), interval '1 s'),
               interval '30 s',
               coalesce(task.unknown_since, task.enqueued_at) + make_interval(secs => %(grace_seconds)s) - now())
     WHERE task.id = ANY (ARRAY (SELECT CAST(left(call, 36) AS uuid) FROM said, jsonb_object_keys(of) AS call))
       AND (SELECT of FROM said) ? (task.id || '/' || task.claim_seq) AND task.status IN ('CLAIMED', 'RUNNING')
       AND task.cancel_asked_at IS NULL
       AND coalesce(task.unknown_since, task.enqueued_at) + make_interval(secs => %(grace_seconds)s) > now()
    RETURNING task.id, task.queue_name
), woken AS (
    SELECT count(pg_notify(horsies_queue_channel(queue_name), ''))
      FROM (SELECT DISTINCT queue_name FROM freed) AS touched
)
SELECT id::text FROM freed CROSS JOIN woken;

-- name: expire
-- End tasks whose time ran out before they were started, whether they wait here or in this worker.
WITH late AS (
    SELECT id FROM horsies_tasks_live
     WHERE good_until <= now() AND workflow_id IS NULL
       AND (status = 'PENDING' OR (status = 'CLAIMED' AND claimed_by_worker_id = %(worker_id)s))
     ORDER BY good_until
     LIMIT 1000
       FOR UPDATE SKIP LOCKED
), ended AS (
    UPDATE horsies_tasks AS task
       SET live = false, status = 'EXPIRED', error_code = 'TASK_EXPIRED', result = %(result)s, terminal_at = now()
     WHERE task.live AND task.id = ANY (ARRAY (SELECT id FROM late))
    RETURNING task.id, task.task_name, task.queue_name, task.workflow_id, task.awaited
)
SELECT CASE WHEN awaited THEN pg_notify('task_done', id::text) END, id, task_name, queue_name, workflow_id FROM ended;

-- name: next_due
-- Seconds until the next delayed task of these queues is due, or the next one expires, or one that a rate limit holds
-- back may start, or a workflow has waited long enough. Every priority that a line holds is one descent of the claim
-- index, however many tasks there are.
WITH RECURSIVE line AS MATERIALIZED (
    SELECT queue_name, is_async, rate_key
      FROM unnest(%(queues)s::text[]) AS asked (queue_name), (VALUES (false), (true)) AS kind (is_async),
           unnest(%(rates)s::text[] || ''::text) AS rate (rate_key)
), level (queue_name, is_async, rate_key, priority) AS (
    SELECT line.queue_name, line.is_async, line.rate_key,
           (SELECT min(task.priority) FROM horsies_tasks_live AS task
             WHERE task.queue_name = line.queue_name AND task.is_async = line.is_async
               AND task.rate_key = line.rate_key AND task.priority <> 0)
      FROM line
    UNION ALL
    SELECT level.queue_name, level.is_async, level.rate_key,
           (SELECT min(task.priority) FROM horsies_tasks_live AS task
             WHERE task.queue_name = level.queue_name AND task.is_async = level.is_async
               AND task.rate_key = level.rate_key AND task.priority <> 0 AND task.priority > level.priority)
      FROM level WHERE level.priority IS NOT NULL
), due (at) AS (
    SELECT (SELECT min(task.enqueued_at) FROM horsies_tasks_live AS task
             WHERE task.queue_name = level.queue_name AND task.is_async = level.is_async
               AND task.rate_key = level.rate_key AND task.priority <> 0 AND task.priority = level.priority
               AND task.enqueued_at > now())
      FROM level WHERE level.priority IS NOT NULL
    UNION ALL
    (SELECT good_until FROM horsies_tasks_live
      WHERE good_until IS NOT NULL AND status <> 'RUNNING'
      ORDER BY good_until LIMIT 1)
    UNION ALL
    SELECT min(due_at) FROM horsies_workflow_tasks WHERE due_at IS NOT NULL
    UNION ALL
    SELECT min(deadline_at) FROM horsies_workflows WHERE deadline_at IS NOT NULL
    UNION ALL
    -- What may start at once is left to the next look. If that finds it gone, someone else has spent the rate: one second
    -- later we look whether they are still at it.
    SELECT CASE WHEN rate.at > now() THEN rate.at ELSE now() + interval '1 s' END
      FROM (SELECT rate_key, spent_until + make_interval(secs => seconds) AS at
              FROM horsies_rates WHERE rate_key = ANY (%(rates)s::text[])) AS rate
     WHERE EXISTS (SELECT FROM line
                    CROSS JOIN LATERAL (
                          SELECT FROM horsies_tasks_live AS task
                           WHERE task.queue_name = line.queue_name AND task.is_async = line.is_async
                             AND task.rate_key = line.rate_key AND task.priority <> 0
                             AND task.enqueued_at <= now() AND task.status = 'PENDING'
                           LIMIT 1) AS task
                    WHERE line.rate_key = rate.rate_key)
)
SELECT extract(epoch FROM min(at) - now())::double precision FROM due;

-- name: watch
-- What has become of these tasks; those that are not done are marked, so that their end is notified. A row that is
-- locked right now is about to change, and one that was sent this moment is about to be claimed: a worker must not find
-- it locked. Both are passed over and asked for again. Losing a mark in a crash costs a poll, so nobody waits for the
-- disk.
WITH free AS MATERIALIZED (
    SELECT id FROM horsies_tasks_live
     WHERE id = ANY (%(ids)s::uuid[]) AND NOT awaited
       AND (status <> 'PENDING' OR sent_at < now() - interval '5 ms')
       AND set_config('synchronous_commit', 'off', true) IS NOT NULL
       FOR UPDATE SKIP LOCKED
), marked AS (
    -- By an array, not by a join: a plan made for an empty table may turn a join round and lock all rows for each of them.
    UPDATE horsies_tasks_live SET awaited = true WHERE id = ANY (ARRAY (SELECT id FROM free)) RETURNING id
)
SELECT task.id, task.status, task.result, task.awaited OR marked.id IS NOT NULL
  FROM horsies_tasks AS task LEFT JOIN marked ON marked.id = task.id
 WHERE task.id = ANY (%(ids)s::uuid[]) AND (task.live OR task.terminal_at >= %(since)s);

-- name: look
-- What has become of these tasks, without asking to be told.
SELECT id, status, result FROM horsies_tasks
 WHERE id = ANY (%(ids)s::uuid[]) AND (live OR terminal_at >= %(since)s);

-- name: info
SELECT id, task_name, status, queue_name, priority, retry_count, max_retries, next_retry_at, sent_at, enqueued_at,
       claimed_at, started_at, completed_at, failed_at, worker_hostname, worker_pid, worker_process_name,
       error_code, failed_reason, result
  FROM horsies_tasks
 WHERE id = %(id)s AND (live OR terminal_at >= %(since)s);

-- name: attempts
SELECT task_id, attempt, outcome, will_retry, started_at, finished_at, error_code, error_message, failed_reason,
       worker_id, worker_hostname, worker_pid, worker_process_name
  FROM horsies_task_attempts
 WHERE task_id = %(id)s
 ORDER BY attempt DESC, finished_at DESC;

-- name: mine
-- How many of these this worker has ended itself.
SELECT count(*) FROM horsies_tasks
 WHERE NOT live AND id = ANY (%(ids)s::uuid[]) AND terminal_at >= %(since)s
   AND claimed_by_worker_id = %(worker_id)s;
