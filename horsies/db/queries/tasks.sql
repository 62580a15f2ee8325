-- fragment: insert_tasks
INSERT INTO horsies_tasks_live (id, task_name, queue_name, is_async, priority, kwargs, enqueued_at, good_until,
                                timeout_ms, max_retries, task_options, unique_key, tags, rate_key, cost)

-- fragment: insert_given_tasks
{insert_tasks}
SELECT id, task_name, queue_name, is_async, priority, kwargs,
       coalesce(eta, now() + make_interval(secs => coalesce(delay_seconds, 0))), good_until,
       timeout_ms, max_retries, task_options, unique_key, tags, coalesce(rate_key, ''), cost

-- fragment: given_tasks
json_to_recordset(CAST(%(rows)s AS json)) AS given (
    id uuid, task_name text, queue_name text, is_async boolean, priority smallint, kwargs text,
    eta timestamptz, delay_seconds double precision, good_until timestamptz, timeout_ms integer,
    max_retries smallint, task_options text, unique_key text, tags text[], rate_key text, cost real,
    idempotency_key text, enqueue_sha text)

-- name: send
-- Insert new tasks. One text parameter holds all rows, so that every driver, ours or the caller's, can run it.
-- A row whose id or unique key is taken is not inserted and is missing from the answer: see `taken`.
{insert_given_tasks} FROM {given_tasks} ON CONFLICT DO NOTHING RETURNING CAST(id AS text);

-- name: send_one
-- The same as `send` for one task without an idempotency key. Encoding and decoding JSON takes a fifth of a send.
{insert_tasks}
VALUES (CAST(CAST(%(id)s AS text) AS uuid), %(task_name)s, %(queue_name)s, CAST(CAST(%(is_async)s AS text) AS boolean),
        CAST(CAST(%(priority)s AS text) AS smallint), %(kwargs)s,
        coalesce(CAST(CAST(%(eta)s AS text) AS timestamptz),
                 now() + make_interval(secs => coalesce(CAST(CAST(%(delay_seconds)s AS text) AS double precision), 0))),
        CAST(CAST(%(good_until)s AS text) AS timestamptz), CAST(CAST(%(timeout_ms)s AS text) AS integer),
        CAST(CAST(%(max_retries)s AS text) AS smallint), %(task_options)s, %(unique_key)s,
        CAST(CAST(%(tags)s AS text) AS text[]), %(rate_key)s, CAST(CAST(%(cost)s AS text) AS real))
ON CONFLICT DO NOTHING
RETURNING CAST(id AS text);

-- name: copy
-- The same as `send` for many calls of one task, none of them with a key or a delay.
COPY horsies_tasks_live (id, kwargs, rate_key, cost, task_name, queue_name, is_async, priority, enqueued_at, good_until,
                         timeout_ms, max_retries, task_options, tags) FROM STDIN;

-- name: send_keyed
-- The same as `send` for tasks with an idempotency key, which is reserved first.
WITH given AS (
    SELECT * FROM {given_tasks}
), reserved AS (
    INSERT INTO horsies_idempotency_keys (idempotency_key, task_id, enqueue_sha)
    SELECT idempotency_key, id, enqueue_sha FROM given WHERE idempotency_key IS NOT NULL
    ON CONFLICT (idempotency_key) DO NOTHING
    RETURNING task_id
)
{insert_given_tasks} FROM given WHERE idempotency_key IS NULL OR id IN (SELECT task_id FROM reserved)
ON CONFLICT DO NOTHING
RETURNING CAST(id AS text);

-- name: debounce
-- Send tasks with unique keys that may replace or follow others, in this order; return the ids of the tasks that stand for them.
SELECT CAST(horsies_debounce(given.value, given.value ->> 'on_conflict') AS text)
  FROM json_array_elements(CAST(%(rows)s AS json)) AS given (value);

-- name: wake
-- Notify the workers of these queues, whether they wait or not: the caller's transaction may commit long after the insert
-- checked whether a worker waits.
SELECT pg_notify(horsies_queue_channel(queue_name), '')
  FROM json_array_elements_text(CAST(%(queues)s AS json)) AS touched (queue_name);

-- name: taken
-- For each row that `send` left out, find the task that holds its idempotency key, its unique key or its id.
SELECT CAST(given.id AS text), CAST(key.task_id AS text), key.enqueue_sha, CAST(twin.id AS text), CAST(same.id AS text),
       same.task_name IS NOT DISTINCT FROM given.task_name AND same.queue_name IS NOT DISTINCT FROM given.queue_name
       AND same.kwargs IS NOT DISTINCT FROM given.kwargs
  FROM {given_tasks}
  LEFT JOIN horsies_idempotency_keys AS key ON key.idempotency_key = given.idempotency_key
  LEFT JOIN horsies_tasks_live AS twin ON twin.unique_key = given.unique_key
  LEFT JOIN horsies_tasks AS same ON same.id = given.id;

-- name: finished
-- Return which of these tasks have ended already: a send repeated after a lost reply must not start them again.
SELECT id FROM horsies_tasks WHERE NOT live AND id = ANY (%(ids)s::uuid[]) AND terminal_at >= %(since)s;

-- name: lock_all
-- Serialize all claims of the cluster until the end of the transaction. This is a statement of its own, so that the next
-- statement sees what the claim before it has written.
SELECT pg_advisory_xact_lock(7240118056);

-- name: lock_queues
-- The same for claims that share one of these queues. Locks are always taken in the same order, which prevents deadlocks.
SELECT pg_advisory_xact_lock(key)
  FROM (SELECT DISTINCT hashtextextended(queue_name, 7240118057) AS key
          FROM unnest(%(queues)s::text[]) AS capped (queue_name)
         ORDER BY key) AS sorted;

-- fragment: settle
-- The first half of a claim: settle completed tasks.
{complete}
), settled AS (
    SELECT count(*) AS ended, count(CASE WHEN awaited THEN pg_notify('task_done', id::text) END) AS notified FROM ended
)

-- fragment: room
-- The pools of the worker that claims, and what decides which tasks may be claimed ahead. A worker that was declared dead, and
-- does not know it yet, claims nothing more.
pool AS MATERIALIZED (
    SELECT * FROM json_to_recordset(CAST(%(pools)s AS json)) AS pool (pool integer, room integer, idle integer, pids integer[],
                                                                             seconds double precision)
     WHERE NOT EXISTS (SELECT FROM horsies_workers WHERE worker_id = %(worker_id)s AND dead_at IS NOT NULL)
), short AS MATERIALIZED (
    -- The expected run times of short tasks, by name; NULL if the worker does not choose by them what to claim ahead.
    SELECT CAST(nullif(%(run_times)s, '') AS jsonb) AS seconds_of
), hungry AS MATERIALIZED (
    SELECT ARRAY (SELECT unnest(queues) FROM horsies_workers
                   WHERE %(run_times)s <> '' AND waiting AND lease_expires_at > now() AND dead_at IS NULL
                     AND worker_id <> %(worker_id)s) AS queues
)

-- fragment: lanes
ROWS FROM (json_to_recordset(CAST(%(lanes)s AS json))
           AS (pool integer, queue_name text, is_async boolean, rate_key text, quota integer,
               priority smallint, enqueued_at timestamptz, id uuid))
WITH ORDINALITY AS lane (pool, queue_name, is_async, rate_key, quota, priority, enqueued_at, id, place)

-- fragment: due_in_lane
-- `priority <> 0` is true for every task. It is the condition of the index for claims, so that no other statement uses it.
SELECT id, good_until, task_name, cost FROM horsies_tasks_live AS task
 WHERE task.queue_name = lane.queue_name AND task.is_async = lane.is_async AND task.priority <> 0
   AND task.parked_at IS NULL
   AND (task.priority, task.enqueued_at, task.id) > (lane.priority, lane.enqueued_at, lane.id)
   AND task.enqueued_at <= now() AND task.status = 'PENDING' AND (task.good_until IS NULL OR task.good_until > now())

-- fragment: fits
-- True for a task that an idle child takes. A task that would wait in a child fits only if it and all tasks before it are
-- short, without an expiry and a limit, their queues have no other worker that waits for tasks, and the children are expected
-- to run all of them within the given seconds.
(seat <= idle OR (SELECT seconds_of FROM short) IS NULL
 OR (bool_and(good_until IS NULL AND NOT is_async AND NOT is_limited AND (SELECT seconds_of FROM short) ? task_name
              AND queue_name <> ALL (CAST((SELECT queues FROM hungry) AS text[]))) OVER up_to_it
     AND sum(CASE WHEN seat > idle THEN CAST((SELECT seconds_of FROM short) ->> task_name AS double precision) ELSE 0 END)
         OVER up_to_it <= seconds))

-- fragment: claimed_columns
task.id, task.claim_seq, task.task_name, task.args, task.kwargs, task.queue_name, task.is_async, task.priority,
task.enqueued_at, task.worker_pid, task.timeout_ms, task.retry_count, task.max_retries, task.crash_count,
task.good_until IS NOT NULL, task.task_options, task.workflow_id, task.workflow_index, task.earlier_attempts, task.rate_key

-- fragment: unflushed
-- Do not wait for the disk if the transaction does nothing but claim idempotent tasks without a limit. Should the server crash
-- and undo such a claim, the task may run a second time while its first run goes on, which idempotent tasks allow. A limit would
-- not count the first run, so claims within one are always flushed. The pattern cannot match within a JSON string, where quotes
-- are escaped.
unflushed AS (
    SELECT count(set_config('synchronous_commit', 'off', true)) AS settings
      FROM (SELECT WHERE CAST(CAST(%(may_stay_unflushed)s AS text) AS boolean)
                     AND NOT EXISTS (SELECT FROM claimed
                                      WHERE task_options IS NULL OR task_options NOT LIKE '%%"idempotent":true%%'
                                         OR rate_key <> '')) AS relaxed
)

-- fragment: claim
-- The second half of a claim: claim the tasks that are `placed`, each with its turn and the pid of its child.
placements AS MATERIALIZED (
    SELECT jsonb_object_agg(id, jsonb_build_array(turn, pid)) AS by_id FROM placed
), claimed AS (
    UPDATE horsies_tasks_live AS task
       SET status = CASE WHEN (SELECT by_id FROM placements) -> task.id::text ->> 1 IS NULL THEN 'CLAIMED' ELSE 'RUNNING' END,
           claimed_at = now(),
           started_at = CASE WHEN (SELECT by_id FROM placements) -> task.id::text ->> 1 IS NOT NULL THEN now() END,
           claim_seq = task.claim_seq + 1,
           claimed_by_worker_id = %(worker_id)s,
           worker_pid = ((SELECT by_id FROM placements) -> task.id::text ->> 1)::integer,
           worker_hostname = %(hostname)s,
           worker_process_name = %(process_name)s
     WHERE task.id = ANY (ARRAY (SELECT id FROM placed))
    RETURNING ((SELECT by_id FROM placements) -> task.id::text -> 0)::integer AS turn, {claimed_columns}
)

-- fragment: number_settled
-- The first row of the answer to a claim. It has no id; its claim_seq is the number of settled tasks, and its worker_pid the
-- number of due tasks that were found and must wait for an idle child.
SELECT 0 AS turn, NULL::uuid AS id, settled.ended::integer AS claim_seq, NULL AS task_name, NULL AS args, NULL AS kwargs,
       NULL AS queue_name, NULL::boolean, NULL::smallint, NULL::timestamptz,
       (SELECT count(*) FROM seated WHERE NOT fits)::integer, NULL::integer, NULL::smallint,
       NULL::smallint, NULL::smallint, NULL::boolean, NULL, NULL::uuid, NULL::integer, NULL::smallint, NULL

-- name: settle_and_claim
-- The hot path: settle completed tasks and claim the most urgent due ones, in one round trip.
--
-- Lanes (the tasks of one queue and kind) are read in the order given, each up to its quota, from the key where the last
-- claim ended, so that the dead rows before it are not read again. The first rows of each pool are started at once, for the
-- children whose pids are given, idle children first. The other rows are prefetched: they stay in the worker as CLAIMED. So
-- do tasks with an expiry that would have to wait in the child: their expiry is checked again when they start. A worker that
-- gives run times prefetches nothing: it claims what its idle children take, and ahead only what fits.
{settle}, {room}, next AS MATERIALIZED (
    SELECT found.*, row_number() OVER () AS turn
      FROM pool
     CROSS JOIN LATERAL (
           SELECT task.*, row_number() OVER () AS seat
             FROM (SELECT task.id, task.good_until, task.task_name, lane.pool, lane.queue_name, lane.is_async
                     FROM {lanes}
                    CROSS JOIN LATERAL (
                          {due_in_lane} AND task.rate_key = ''
                           ORDER BY task.priority, task.enqueued_at, task.id LIMIT lane.quota
                             FOR UPDATE SKIP LOCKED) AS task
                    WHERE lane.pool = pool.pool
                    ORDER BY lane.place LIMIT pool.room) AS task) AS found LIMIT %(limit)s
), seated AS MATERIALIZED (
    SELECT next.id, next.turn, CASE WHEN seat <= idle OR good_until IS NULL THEN pids[seat] END AS pid, {fits} AS fits
      FROM (SELECT *, false AS is_limited FROM next) AS next JOIN pool USING (pool)
    WINDOW up_to_it AS (PARTITION BY pool ORDER BY seat)
), placed AS (
    SELECT id, turn, pid FROM seated WHERE fits
), {claim}, {unflushed}
{number_settled} FROM settled CROSS JOIN unflushed
UNION ALL
SELECT * FROM claimed
 ORDER BY turn;

-- name: settle_and_claim_for_idle
-- The same if every task that is claimed has an idle child. The statement is shorter, and so it takes a fifth less time: a
-- claim of few tasks spends more on its plan than on rows.
{settle}, found AS MATERIALIZED (
    SELECT task.id, pids[seat] AS pid, row_number() OVER () AS turn
      FROM (SELECT * FROM json_to_recordset(CAST(%(pools)s AS json)) AS pool (pool integer, room integer, pids integer[])
             WHERE NOT EXISTS (SELECT FROM horsies_workers WHERE worker_id = %(worker_id)s AND dead_at IS NOT NULL)) AS pool
     CROSS JOIN LATERAL (
           SELECT task.id, row_number() OVER () AS seat
             FROM (SELECT task.id
                     FROM {lanes}
                    CROSS JOIN LATERAL (
                          {due_in_lane} AND task.rate_key = ''
                           ORDER BY task.priority, task.enqueued_at, task.id LIMIT lane.quota
                             FOR UPDATE SKIP LOCKED) AS task
                    WHERE lane.pool = pool.pool
                    ORDER BY lane.place LIMIT pool.room) AS task) AS task
), placed AS MATERIALIZED (
    SELECT array_agg(id ORDER BY turn) AS ids, array_agg(pid ORDER BY turn) AS pids FROM found
), claimed AS (
    UPDATE horsies_tasks_live AS task
       SET status = 'RUNNING', claimed_at = now(), started_at = now(), claim_seq = task.claim_seq + 1,
           claimed_by_worker_id = %(worker_id)s,
           worker_pid = (SELECT pids FROM placed)[array_position((SELECT ids FROM placed), task.id)],
           worker_hostname = %(hostname)s,
           worker_process_name = %(process_name)s
     WHERE task.id = ANY (CAST((SELECT ids FROM placed) AS uuid[]))
    RETURNING array_position((SELECT ids FROM placed), task.id) AS turn, {claimed_columns}
), {unflushed}
SELECT 0 AS turn, NULL::uuid AS id, settled.ended::integer AS claim_seq, NULL AS task_name, NULL AS args, NULL AS kwargs,
       NULL AS queue_name, NULL::boolean, NULL::smallint, NULL::timestamptz, 0, NULL::integer, NULL::smallint,
       NULL::smallint, NULL::smallint, NULL::boolean, NULL, NULL::uuid, NULL::integer, NULL::smallint, NULL
  FROM settled CROSS JOIN unflushed
UNION ALL
SELECT * FROM claimed
 ORDER BY turn;

-- fragment: limits
-- What the concurrency limits and the rate limits allow now.
cap AS MATERIALIZED (
    SELECT queue_name, in_use, recorded,
           greatest(0, max_tasks - in_use - (SELECT coalesce(sum(tasks), 0) FROM horsies_in_flight AS other
                                       WHERE other.queue_name = cap.queue_name
                                         AND other.worker_id <> %(worker_id)s)) AS remaining
      FROM json_to_recordset(CAST(%(caps)s AS json)) AS cap (queue_name text, max_tasks integer, in_use integer, recorded integer)
), allowance AS MATERIALIZED (
    -- An object by name, so that a lookup does not scan all limits.
    SELECT jsonb_object_agg(queue_name, remaining) AS by_queue FROM cap
), rate AS MATERIALIZED (
    SELECT rate_key, seconds, bucket.spent_until,
           CASE WHEN held_until > now() THEN 0 WHEN seconds > 0 THEN
               greatest(0, least(burst, floor(extract(epoch FROM now() - bucket.spent_until) / seconds + 1e-6)))::integer END AS allowed
      FROM horsies_rates AS known
     CROSS JOIN LATERAL (SELECT greatest(spent_until, now() - make_interval(secs => burst * seconds)) AS spent_until) AS bucket
     WHERE rate_key = ANY (%(rates)s::text[])
     ORDER BY rate_key FOR UPDATE OF known
)

-- fragment: count_usage
-- Write the new usage of the concurrency limits.
started AS MATERIALIZED (
    SELECT jsonb_object_agg(coalesce(queue_name, ''), tasks) AS by_queue
      FROM (SELECT queue_name, count(*) AS tasks FROM claimed WHERE worker_pid IS NOT NULL
             GROUP BY ROLLUP (queue_name)) AS started
), counted AS MATERIALIZED (
    SELECT queue_name, recorded, in_use + coalesce((SELECT (by_queue ->> queue_name)::integer FROM started), 0) AS tasks
      FROM cap
), noted AS (
    INSERT INTO horsies_in_flight AS known (queue_name, worker_id, tasks)
    SELECT queue_name, %(worker_id)s, tasks FROM counted WHERE tasks <> recorded
    ON CONFLICT (queue_name, worker_id) DO UPDATE SET tasks = excluded.tasks
), woken AS (
    -- Wake sleeping workers if this worker uses less of a limit than before, or if the recorded usage is unknown (-1).
    SELECT count(pg_notify(horsies_queue_channel(lane.queue_name), '')) AS queues
      FROM (SELECT DISTINCT lane.queue_name
              FROM counted CROSS JOIN horsies_workers AS worker CROSS JOIN unnest(worker.queues) AS lane (queue_name)
             WHERE (counted.tasks < counted.recorded OR counted.recorded < 0) AND counted.queue_name IN ('', lane.queue_name)
               AND (worker.waiting OR worker.waiting_async) AND worker.lease_expires_at > now()
               AND worker.worker_id <> %(worker_id)s) AS lane
)

-- name: settle_and_claim_within
-- The same within concurrency limits of the cluster and of queues, and within rate limits: the tasks found are cut to what
-- the limits allow, and this worker's new usage is written. The tasks of a rate limit have lanes of their own. This costs a
-- third more than `settle_and_claim`, which is why there are two statements. Tasks are left out that this worker does not
-- know and another one does: `left_out` has their names by queue, or is empty.
{settle}, {room}, {limits}, next AS MATERIALIZED (
    SELECT found.*, row_number() OVER () AS number
      FROM pool
     CROSS JOIN LATERAL (
           SELECT task.id, task.good_until, task.task_name, lane.queue_name, lane.is_async, lane.rate_key, lane.pool, lane.place
             FROM {lanes}
             LEFT JOIN rate ON rate.rate_key = lane.rate_key
            CROSS JOIN LATERAL (
                  {due_in_lane} AND task.rate_key = lane.rate_key
                   AND (%(left_out)s = '' OR (CAST(nullif(%(left_out)s, '') AS jsonb) -> lane.queue_name ? task.task_name)
                                             IS NOT TRUE)
                   ORDER BY task.priority, task.enqueued_at, task.id
                   LIMIT least(lane.quota, (SELECT (by_queue ->> lane.queue_name)::integer FROM allowance), rate.allowed)
                     FOR UPDATE SKIP LOCKED) AS task
            WHERE lane.pool = pool.pool
            ORDER BY lane.place LIMIT pool.room) AS found
), within AS (
    SELECT next.*, row_number() OVER (ORDER BY place, number) AS turn
      FROM (SELECT next.*, row_number() OVER (PARTITION BY queue_name ORDER BY place, number) AS of_queue,
                   row_number() OVER (PARTITION BY rate_key ORDER BY place, number) AS of_rate
              FROM next) AS next
      LEFT JOIN rate USING (rate_key)
     WHERE of_queue <= least(%(batch)s, (SELECT (by_queue ->> queue_name)::integer FROM allowance))
       AND of_rate <= coalesce(rate.allowed, of_rate)
), seated AS MATERIALIZED (
    SELECT within.id, rate_key, turn, CASE WHEN seat <= idle OR good_until IS NULL THEN pids[seat] END AS pid, {fits} AS fits
      FROM (SELECT *, row_number() OVER (PARTITION BY pool ORDER BY turn) AS seat,
                   rate_key <> '' OR coalesce((SELECT by_queue FROM allowance) ?| ARRAY[queue_name, ''], false) AS is_limited
              FROM within
             WHERE turn <= least(%(limit)s, (SELECT (by_queue ->> '')::integer FROM allowance))) AS within
      JOIN pool USING (pool)
    WINDOW up_to_it AS (PARTITION BY pool ORDER BY seat)
), placed AS (
    SELECT id, rate_key, turn, pid FROM seated WHERE fits AND (pid IS NOT NULL OR rate_key = '')
), spent AS (
    UPDATE horsies_rates
       SET spent_until = rate.spent_until + make_interval(secs => taken.starts * rate.seconds)
      FROM rate JOIN (SELECT rate_key, count(*) AS starts FROM placed GROUP BY rate_key) AS taken USING (rate_key)
     WHERE horsies_rates.rate_key = rate.rate_key
), {claim}, {unflushed}, {count_usage}
{number_settled} FROM settled CROSS JOIN woken CROSS JOIN unflushed
UNION ALL
SELECT * FROM claimed
 ORDER BY turn;

-- fragment: wake_for_keys
-- Wake the sleeping workers of the queues in which more tasks of a key wait.
SELECT count(pg_notify(horsies_queue_channel(lane.queue_name), '')) AS queues
  FROM (SELECT DISTINCT lane.queue_name
          FROM horsies_workers AS worker CROSS JOIN unnest(worker.queues) AS lane (queue_name)
         WHERE (worker.waiting OR worker.waiting_async) AND worker.lease_expires_at > now()
           AND worker.worker_id <> %(worker_id)s) AS lane
 WHERE EXISTS (SELECT

-- fragment: waiting_of_key
LATERAL (SELECT FROM horsies_tasks_live AS task
          WHERE task.queue_name = lane.queue_name AND task.is_async = kind.is_async AND task.rate_key = ended.rate_key
            AND task.priority <> 0 AND task.parked_at IS NULL AND task.enqueued_at <= now() AND task.status = 'PENDING' LIMIT 1) AS task

-- name: wake_for_keys
-- Tasks of these keys have ended, and this worker may not have claimed the next ones: wake sleeping workers that could.
{wake_for_keys} FROM unnest(%(rate_keys)s::text[]) AS ended (rate_key)
                CROSS JOIN (VALUES (false), (true)) AS kind (is_async)
                CROSS JOIN {waiting_of_key});

-- name: lock_keys
-- Find the next keys of which a task may start now, lock them until the end of the transaction, and pass them to the next
-- statement in the setting `horsies.keys`. This is a statement of its own, so that the next one sees what the last holders of
-- these locks have committed: its counts are exact. A key that another worker has locked is skipped.
--
-- The keys of a lane are walked in their order, from the one that was served last, and around. Each step is one descent of
-- the index for claims, so the cost does not grow with the number of keys. A walk ends when there are enough keys, when it has
-- come around, or after so many steps; then its last row is that of the last step.
WITH given AS MATERIALIZED (
    SELECT CAST(%(completed)s AS jsonb) AS by_call
), walked AS MATERIALIZED (
    SELECT lane.place, lane.queue_name, lane.is_async, lane.room, step.key, step.number, step.most
      FROM ROWS FROM (json_to_recordset(CAST(%(key_lanes)s AS json))
                      AS (queue_name text, is_async boolean, room integer, after text))
           WITH ORDINALITY AS lane (queue_name, is_async, room, after, place)
     CROSS JOIN LATERAL (
           SELECT checked.* FROM (
               WITH RECURSIVE step (key, is_around, number) AS (
                   SELECT lane.after COLLATE "C", false, 0
                   UNION ALL
                   SELECT coalesce(next.key, ''), step.is_around OR next.key IS NULL, step.number + 1
                     FROM step
                    CROSS JOIN LATERAL (
                          SELECT (SELECT CASE WHEN task.rate_key < 'key>' THEN task.rate_key END
                                    FROM horsies_tasks_live AS task
                                   WHERE task.queue_name = lane.queue_name AND task.is_async = lane.is_async
                                     AND task.priority <> 0 AND task.parked_at IS NULL AND task.rate_key > step.key AND task.rate_key >= 'key='
                                   ORDER BY task.rate_key LIMIT 1) AS key) AS next
                    WHERE step.number < %(steps)s
                      AND NOT (step.is_around AND (next.key IS NULL OR next.key > lane.after))
               )
               SELECT step.key, step.number, CASE WHEN step.number > 0 AND step.key <> '' THEN (
                      SELECT CASE WHEN coalesce(free.slots > 0, true)
                                  THEN CASE WHEN pg_try_advisory_xact_lock(hashtextextended(step.key, 7240118061))
                                            THEN coalesce(free.slots, lane.room) END END
                        FROM (SELECT task.task_name, coalesce(task.cost, 1) AS cost
                                FROM horsies_tasks_live AS task
                               WHERE task.queue_name = lane.queue_name AND task.is_async = lane.is_async
                                 AND task.rate_key = step.key AND task.priority <> 0 AND task.parked_at IS NULL
                                 AND task.enqueued_at <= now() AND task.status = 'PENDING'
                                 AND (task.good_until IS NULL OR task.good_until > now())
                               ORDER BY task.priority, task.enqueued_at, task.id LIMIT 1) AS head
                        LEFT JOIN horsies_task_definitions AS known ON known.task_name = head.task_name
                        LEFT JOIN horsies_keys AS state ON state.rate_key = step.key
                       CROSS JOIN LATERAL (
                             SELECT CASE WHEN known.key_concurrency IS NOT NULL THEN known.key_concurrency - (
                                 SELECT count(*) FROM horsies_key_slots AS slot
                                  WHERE slot.rate_key = step.key AND {is_slot_taken}
                                    AND NOT (SELECT by_call FROM given) ? (slot.task_id || '/' || slot.claim_seq)
                             )::integer END AS slots) AS free
                       WHERE state.paused_at IS NULL AND coalesce(state.waits_until <= now(), true)
                         AND coalesce(state.spent_until + make_interval(secs => known.key_seconds * least(1, head.cost))
                                      <= now(), true)
                         AND (%(left_out)s = ''
                              OR (CAST(nullif(%(left_out)s, '') AS jsonb) -> lane.queue_name ? head.task_name) IS NOT TRUE))
                  END AS most
                 FROM step) AS checked
            WHERE checked.most IS NOT NULL OR checked.number = %(steps)s
            LIMIT lane.room) AS step
), passed AS MATERIALIZED (
    SELECT set_config('horsies.keys', coalesce(json_agg(key ORDER BY lane_place, number), '[]')::text, true)
      FROM (SELECT place AS lane_place, number, json_build_object(
                       'queue_name', queue_name, 'is_async', is_async, 'rate_key', key,
                       'quota', least(most, ceil(room::double precision / count(*) OVER (PARTITION BY place)))) AS key
              FROM walked WHERE most IS NOT NULL) AS ready
)
SELECT walked.queue_name, walked.is_async, walked.key, walked.most IS NOT NULL AS is_ready
  FROM passed LEFT JOIN walked ON true ORDER BY walked.place, walked.number;

-- name: settle_and_claim_keyed
-- The same as `settle_and_claim_within`, and the keys that `lock_keys` has locked: a lane without a rate limit's name stands for
-- them. Within a key, tasks start in their order: one that may not start, or is locked, holds back those behind it. A task with a
-- key starts only in an idle child.
{settle}, {room}, {limits}, key AS MATERIALIZED (
    SELECT * FROM ROWS FROM (json_to_recordset(CAST(coalesce(nullif(current_setting('horsies.keys', true), ''), '[]') AS json))
                             AS (queue_name text, is_async boolean, rate_key text, quota integer))
             WITH ORDINALITY AS key (queue_name, is_async, rate_key, quota, key_place)
), key_state AS MATERIALIZED (
    SELECT key.rate_key, coalesce(known.spent_until, '-infinity') AS spent_until,
           (SELECT count(*) FROM horsies_key_slots AS slot
             WHERE slot.rate_key = key.rate_key AND {is_slot_taken}
               AND slot.task_id <> ALL (ARRAY (SELECT id FROM ended))) AS running
      FROM (SELECT DISTINCT rate_key FROM key) AS key
      LEFT JOIN horsies_keys AS known ON known.rate_key = key.rate_key
     WHERE known.paused_at IS NULL AND coalesce(known.waits_until <= now(), true)
), found AS MATERIALIZED (
    SELECT task.*, row_number() OVER () AS number
      FROM pool
     CROSS JOIN LATERAL (
           SELECT task.*, lane.queue_name, lane.is_async, lane.rate_key, lane.pool, lane.place, lane.quota,
                  known.key_concurrency, known.key_seconds, known.key_burst, key_state.running, key_state.spent_until,
                  key_state.rate_key IS NOT NULL AS is_keyed,
                  coalesce(CASE WHEN key_state.rate_key IS NULL THEN lane.rate_key ELSE known.rate_key END, '') AS rate_name,
                  task.id = waiting.ids[task.nth] AS is_next
             FROM (SELECT lane.pool, lane.queue_name, lane.is_async, coalesce(key.rate_key, lane.rate_key) AS rate_key,
                          least(lane.quota, key.quota) AS quota, lane.priority, lane.enqueued_at, lane.id, lane.place,
                          coalesce(key.key_place, 0) AS key_place
                     FROM {lanes}
                     LEFT JOIN key ON lane.rate_key IS NULL AND key.queue_name = lane.queue_name
                                  AND key.is_async = lane.is_async) AS lane
             LEFT JOIN rate ON rate.rate_key = lane.rate_key
             LEFT JOIN key_state ON key_state.rate_key = lane.rate_key
            CROSS JOIN LATERAL (
                  SELECT CASE WHEN key_state.rate_key IS NOT NULL THEN ARRAY (
                      SELECT id FROM ({due_in_lane} AND task.rate_key = lane.rate_key
                                       ORDER BY task.priority, task.enqueued_at, task.id LIMIT lane.quota) AS task)
                  END AS ids) AS waiting
            CROSS JOIN LATERAL (
                  SELECT locked.*, row_number() OVER () AS nth
                    FROM ({due_in_lane} AND task.rate_key = lane.rate_key
                           AND (key_state.rate_key IS NOT NULL OR %(left_out)s = ''
                                OR (CAST(nullif(%(left_out)s, '') AS jsonb) -> lane.queue_name ? task.task_name) IS NOT TRUE)
                           ORDER BY task.priority, task.enqueued_at, task.id
                           LIMIT least(lane.quota, (SELECT (by_queue ->> lane.queue_name)::integer FROM allowance),
                                       rate.allowed)
                             FOR UPDATE SKIP LOCKED) AS locked) AS task
             LEFT JOIN horsies_task_definitions AS known
               ON key_state.rate_key IS NOT NULL AND known.task_name = task.task_name
            WHERE lane.pool = pool.pool AND (lane.key_place = 0 OR key_state.rate_key IS NOT NULL)
            ORDER BY lane.place, task.nth, lane.key_place LIMIT pool.room) AS task
), numbered AS (
    SELECT found.*, row_number() OVER (PARTITION BY rate_name ORDER BY place, number) AS of_rate,
           row_number() OVER of_key AS of_key,
           coalesce(sum(coalesce(cost, 1) * key_seconds)
                        OVER (PARTITION BY is_keyed, rate_key ORDER BY place, number
                              ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS spent_before
      FROM found
    WINDOW of_key AS (PARTITION BY is_keyed, rate_key ORDER BY place, number)
), in_order AS (
    SELECT numbered.*, NOT is_keyed OR bool_and(
               is_next AND of_rate <= coalesce(rate.allowed, of_rate) AND coalesce(running + of_key <= key_concurrency, true)
               AND (%(left_out)s = ''
                    OR (CAST(nullif(%(left_out)s, '') AS jsonb) -> queue_name ? task_name) IS NOT TRUE)
               AND CASE WHEN key_seconds > 0 THEN
                       extract(epoch FROM now() - greatest(numbered.spent_until,
                                                           now() - make_interval(secs => key_burst * key_seconds)))
                           - spent_before >= least(1, coalesce(cost, 1)) * key_seconds - 1e-6 ELSE true END)
               OVER (PARTITION BY is_keyed, numbered.rate_key ORDER BY place, number) AS is_turn
      FROM numbered LEFT JOIN rate ON rate.rate_key = numbered.rate_name
), within AS (
    SELECT cut.*, row_number() OVER (ORDER BY place, number) AS turn
      FROM (SELECT in_order.*, row_number() OVER (PARTITION BY queue_name ORDER BY place, number) AS of_queue
              FROM in_order WHERE is_turn) AS cut
      LEFT JOIN rate ON rate.rate_key = cut.rate_name
     WHERE of_queue <= least(%(batch)s, (SELECT (by_queue ->> queue_name)::integer FROM allowance))
       AND of_rate <= coalesce(rate.allowed, of_rate)
), seated AS MATERIALIZED (
    SELECT within.id, rate_key, rate_name, is_keyed, cost, key_seconds, key_burst, spent_until, turn,
           CASE WHEN seat <= idle OR good_until IS NULL THEN pids[seat] END AS pid,
           {fits} AND (NOT is_keyed OR seat <= idle) AS fits
      FROM (SELECT *, row_number() OVER (PARTITION BY pool ORDER BY turn) AS seat,
                   rate_key <> '' OR coalesce((SELECT by_queue FROM allowance) ?| ARRAY[queue_name, ''], false) AS is_limited
              FROM within
             WHERE turn <= least(%(limit)s, (SELECT (by_queue ->> '')::integer FROM allowance))) AS within
      JOIN pool USING (pool)
    WINDOW up_to_it AS (PARTITION BY pool ORDER BY seat)
), placed AS (
    SELECT * FROM seated WHERE fits AND (pid IS NOT NULL OR rate_key = '')
), spent AS (
    UPDATE horsies_rates
       SET spent_until = rate.spent_until + make_interval(secs => taken.starts * rate.seconds)
      FROM rate JOIN (SELECT rate_name, count(*) AS starts FROM placed GROUP BY rate_name) AS taken
        ON taken.rate_name = rate.rate_key
     WHERE horsies_rates.rate_key = rate.rate_key
), spent_of_key AS (
    INSERT INTO horsies_keys AS known (rate_key, spent_until, next_at)
    SELECT rate_key, until, until + make_interval(secs => seconds)
      FROM (SELECT rate_key, max(key_seconds) AS seconds,
                   max(greatest(spent_until, now() - make_interval(secs => key_burst * key_seconds)))
                       + make_interval(secs => sum(coalesce(cost, 1) * key_seconds)) AS until
              FROM placed WHERE is_keyed AND key_seconds > 0 GROUP BY rate_key) AS taken
     ORDER BY rate_key
    ON CONFLICT (rate_key) DO UPDATE
       SET spent_until = excluded.spent_until, next_at = greatest(known.waits_until, excluded.next_at)
), {claim}, {unflushed}, taken_slots AS (
    INSERT INTO horsies_key_slots (rate_key, task_id, claim_seq)
    SELECT rate_key, id, claim_seq FROM claimed WHERE rate_key >= 'key=' AND rate_key < 'key>'
), freed_slots AS (
    -- The slots of tasks that have just ended, and those that were left behind in the keys that were visited.
    DELETE FROM horsies_key_slots AS slot
     WHERE slot.rate_key = ANY (ARRAY (SELECT rate_key FROM key UNION
                                       SELECT rate_key FROM ended WHERE rate_key >= 'key=' AND rate_key < 'key>'))
       AND (slot.task_id = ANY (ARRAY (SELECT id FROM ended)) OR NOT {is_slot_taken})
), {count_usage}, woken_for_keys AS (
    {wake_for_keys} FROM ended
                     CROSS JOIN (VALUES (false), (true)) AS kind (is_async)
                     CROSS JOIN {waiting_of_key}
                     WHERE ended.rate_key >= 'key=' AND ended.rate_key < 'key>'
                       AND ended.rate_key <> ALL (ARRAY (SELECT rate_key FROM placed)))
)
{number_settled} FROM settled CROSS JOIN woken CROSS JOIN woken_for_keys CROSS JOIN unflushed
UNION ALL
SELECT * FROM claimed
 ORDER BY turn;

-- name: refresh
-- Refresh the statistics if they are outdated. Results wait behind this statement, so it does not wait for a lock for long.
SELECT horsies_refresh_statistics() FROM (SELECT set_config('lock_timeout', '200ms', true)) AS in_a_hurry;

-- name: start
-- Start prefetched tasks: only those that are still ours and have not expired.
WITH given AS MATERIALIZED (
    SELECT CAST(%(starts)s AS jsonb) AS by_call
)
UPDATE horsies_tasks_live AS task
   SET status = 'RUNNING', started_at = now(),
       worker_pid = ((SELECT by_call FROM given) -> (task.id || '/' || task.claim_seq))::integer
 WHERE {is_given} AND {is_owned} AND task.status = 'CLAIMED'
   AND (task.good_until IS NULL OR task.good_until > now())
RETURNING task.id;

-- name: fail
-- Settle failed attempts. With a delay the task goes back to PENDING, unless it would be due after its expiry; otherwise it
-- is FAILED. A task that was cancelled is CANCELLED, however it failed, and so is one whose snooze ends after its expiry. A
-- row with `asked` applies only to tasks that were cancelled. A snooze does not count as an attempt; with `holds_lane`, all tasks
-- of the key or rate limit wait until it is over. When a task has failed
-- for good, its `on_failure` task is sent. A task that is missing from the answer is no longer ours.
WITH outcome AS (
    SELECT given.*, task.task_name, task.queue_name, task.started_at, task.retry_count, task.earlier_attempts,
           task.claimed_by_worker_id, task.worker_hostname, task.worker_pid, task.worker_process_name,
           now() + make_interval(secs => given.delay_seconds) AS due,
           given.delay_seconds IS NOT NULL AND task.cancel_asked_at IS NULL
               AND (task.good_until IS NULL OR given.snoozed
                    OR now() + make_interval(secs => given.delay_seconds) < task.good_until) AS again,
           task.cancel_asked_at IS NOT NULL AS stopped
      FROM (SELECT DISTINCT ON (id, claim_seq) *
              FROM json_to_recordset(CAST(%(failures)s AS json)) AS given (
                       id uuid, claim_seq integer, result text, error_code text, error_message text,
                       failed_reason text, delay_seconds double precision, crashed boolean, snoozed boolean,
                       asked boolean, on_failure text, holds_lane boolean)) AS given
     CROSS JOIN LATERAL (SELECT * FROM horsies_tasks_live AS task
                          WHERE task.id = given.id AND task.claim_seq = given.claim_seq AND task.status = 'RUNNING'
                            AND {is_owned}
                            AND (task.cancel_asked_at IS NOT NULL OR NOT given.asked)
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
           -- A member of a batch is retried by itself.
           rate_key = CASE WHEN again AND NOT snoozed AND task.rate_key >= 'batch=' AND task.rate_key < 'batch>' THEN ''
                           ELSE task.rate_key END,
           -- A task that holds its key keeps its place in it.
           enqueued_at = CASE WHEN again AND NOT (coalesce(outcome.holds_lane, false) AND task.rate_key >= 'key='
                                                  AND task.rate_key < 'key>')
                              THEN outcome.due ELSE task.enqueued_at END,
           unknown_since = NULL, unknown_until = NULL,
           next_retry_at = CASE WHEN again THEN outcome.due END,
           claimed_by_worker_id = CASE WHEN again THEN NULL ELSE task.claimed_by_worker_id END,
           claimed_at = CASE WHEN again THEN NULL ELSE task.claimed_at END,
           started_at = CASE WHEN again THEN NULL ELSE task.started_at END,
           result = CASE WHEN again THEN NULL WHEN stopped THEN %(cancelled)s ELSE outcome.result END,
           error_code = CASE WHEN again THEN NULL WHEN stopped THEN 'TASK_CANCELLED' ELSE outcome.error_code END,
           failed_reason = CASE WHEN NOT again AND NOT stopped THEN outcome.failed_reason END,
           failed_at = CASE WHEN NOT again AND NOT stopped AND NOT snoozed THEN now() END,
           terminal_at = CASE WHEN again THEN NULL ELSE now() END
      FROM outcome
     WHERE task.live AND task.id = outcome.id AND task.id = ANY (ARRAY (SELECT id FROM outcome))
    RETURNING task.id, task.awaited, again, task.queue_name, task.status, task.task_name, task.priority,
              outcome.error_code, outcome.error_message, outcome.on_failure, task.rate_key, outcome.holds_lane,
              outcome.due
), held_key AS (
    INSERT INTO horsies_keys AS known (rate_key, waits_until, next_at)
    SELECT rate_key, max(due), max(due) FROM ended
     WHERE again AND holds_lane AND rate_key >= 'key=' AND rate_key < 'key>'
     GROUP BY rate_key ORDER BY rate_key
    ON CONFLICT (rate_key) DO UPDATE SET waits_until = greatest(known.waits_until, excluded.waits_until),
                                         next_at = greatest(known.next_at, excluded.next_at)
), held_rate AS (
    UPDATE horsies_rates AS known
       SET held_until = greatest(known.held_until, held.due)
      FROM (SELECT rate_key, max(due) AS due FROM ended WHERE again AND holds_lane GROUP BY rate_key) AS held
     WHERE known.rate_key = held.rate_key
), sent AS (
    -- With the options of its definition, but without an on_failure of its own, so that failures cannot go on forever.
    INSERT INTO horsies_tasks_live (id, task_name, queue_name, is_async, priority, kwargs, timeout_ms, max_retries,
                                    task_options, rate_key)
    SELECT horsies_new_id(), ended.on_failure, coalesce(known.queue_name, ended.queue_name),
           coalesce(known.is_async, false), coalesce(known.priority, ended.priority), call.kwargs::text,
           known.timeout_ms, coalesce(known.max_retries, 0), (known.task_options::jsonb - 'on_failure')::text,
           coalesce(horsies_lane(known, call.kwargs::jsonb), '')
      FROM ended
     CROSS JOIN LATERAL (SELECT json_build_object('task_id', ended.id, 'task_name', ended.task_name,
                                                  'error_code', coalesce(ended.error_code, ''),
                                                  'message', coalesce(ended.error_message, '')) AS kwargs) AS call
      LEFT JOIN horsies_task_definitions AS known ON known.task_name = ended.on_failure
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

-- fragment: in_batch_lane
FROM horsies_tasks_live AS task
WHERE task.queue_name = lane.queue_name AND task.is_async = lane.is_async AND task.rate_key = lane.rate_key
  AND task.priority <> 0 AND task.parked_at IS NULL AND task.enqueued_at <= now() AND task.status = 'PENDING'
  AND (task.good_until IS NULL OR task.good_until > now())
ORDER BY task.priority, task.enqueued_at, task.id

-- fragment: ready_lanes
lane AS MATERIALIZED (
    SELECT lane.* FROM ROWS FROM (json_to_recordset(CAST(%(lanes)s AS json))
           AS (queue_name text, is_async boolean, rate_key text, level integer, size integer, linger double precision))
      WITH ORDINALITY AS lane (queue_name, is_async, rate_key, level, size, linger, place)
     WHERE NOT EXISTS (SELECT FROM horsies_workers WHERE worker_id = %(worker_id)s AND dead_at IS NOT NULL)
), ready AS MATERIALIZED (
    SELECT * FROM lane
     WHERE (SELECT count(*) >= lane.size OR min(enqueued_at) <= now() - make_interval(secs => lane.linger)
              FROM (SELECT task.enqueued_at {in_batch_lane} LIMIT lane.size) AS head)
)

-- name: batch_is_ready
-- Return true if a batch of these lanes is ready.
WITH {ready_lanes} SELECT EXISTS (SELECT FROM ready);

-- name: claim_batches
-- Claim whole batches: at most one for each of the given children, from the lanes in turn. A batch is ready when it is full, or
-- when its oldest member has waited for `linger` seconds. A lane is looked at without locks first, so that tasks which wait
-- for others are not written.
WITH {ready_lanes}, found AS MATERIALIZED (
    SELECT lane.level, lane.place, lane.size, lane.linger, member.id, member.enqueued_at, (member.nth - 1) / lane.size AS batch, member.nth
      FROM ready AS lane
     CROSS JOIN LATERAL (
           SELECT locked.*, row_number() OVER () AS nth
             FROM (SELECT task.id, task.enqueued_at {in_batch_lane}
                    LIMIT lane.size * cardinality(%(pids)s::integer[]) FOR UPDATE SKIP LOCKED) AS locked) AS member
), batch AS (
    SELECT place, batch, row_number() OVER (ORDER BY level, batch, place) AS seat
      FROM found
     GROUP BY level, place, batch, size, linger
    HAVING count(*) = size OR min(enqueued_at) <= now() - make_interval(secs => linger)
), placed AS (
    SELECT found.id, row_number() OVER (ORDER BY seat, nth) AS turn, (%(pids)s::integer[])[seat] AS pid
      FROM found JOIN batch USING (place, batch)
     WHERE seat <= cardinality(%(pids)s::integer[])
), {claim}
SELECT * FROM claimed ORDER BY turn;

-- fragment: unclaim
status = 'PENDING', claim_seq = task.claim_seq + 1, claimed_by_worker_id = NULL, claimed_at = NULL, started_at = NULL,
worker_pid = NULL

-- fragment: and_wake
-- Return the tasks that a statement has released, and wake the workers of their queues.
), woken AS (
    SELECT count(pg_notify(horsies_queue_channel(queue_name), ''))
      FROM (SELECT DISTINCT queue_name FROM freed) AS touched
)
SELECT id::text FROM freed CROSS JOIN woken

-- name: release
-- Release the tasks that the database counts as this worker's, except those to keep; with `ids`, only tasks among these.
-- These were prefetched, or the reply to their claim was lost. A task that the worker held before and claimed again by a
-- statement whose reply was lost has another claim_seq, so it is released too. A task that was cancelled is not released:
-- see `unheld`.
WITH freed AS (
    UPDATE horsies_tasks_live AS task
       SET {unclaim}
     WHERE task.claimed_by_worker_id = %(worker_id)s AND task.cancel_asked_at IS NULL
       AND task.status IN ('CLAIMED', 'RUNNING') AND (%(ids)s::uuid[] IS NULL OR task.id = ANY (%(ids)s::uuid[]))
       AND (task.id, task.claim_seq) NOT IN (SELECT id, claim_seq FROM json_to_recordset(CAST(%(keep)s AS json))
                                                 AS held (id uuid, claim_seq integer))
    RETURNING task.id, task.queue_name
{and_wake};

-- name: held
-- Return those of these tasks that the database counts as this worker's.
SELECT id::text, claim_seq FROM horsies_tasks_live AS task WHERE id = ANY (%(ids)s::uuid[]) AND {is_owned};

-- name: give_back
-- Release tasks that never began, because their worker died before: claimed ones, or those that are recorded as started.
WITH given AS MATERIALIZED (
    SELECT CAST(%(calls)s AS jsonb) AS by_call
), freed AS (
    UPDATE horsies_tasks_live AS task
       SET {unclaim}
     WHERE {is_given} AND {is_owned} AND task.status = %(status)s AND task.cancel_asked_at IS NULL
    RETURNING task.id, task.queue_name
{and_wake};

-- fragment: is_known
(task.queue_name, task.task_name) IN (SELECT queue_name, task_name FROM known)

-- fragment: fails_at
least(task.unknown_until, now() + make_interval(secs => %(grace_seconds)s))

-- name: defer_unknown
-- Release tasks that are not registered in this worker, so that another worker may run them. A task that a live worker knows is
-- due as before. Any other task is due later, each time by a longer delay, until a worker comes that knows it. A task that
-- is missing from the answer has waited for the whole grace period, or is no longer ours.
WITH given AS MATERIALIZED (
    SELECT CAST(%(calls)s AS jsonb) AS by_call
), known AS MATERIALIZED (
    SELECT DISTINCT queue_name, task_name
      FROM horsies_workers AS worker
     CROSS JOIN LATERAL unnest(worker.queues) AS queue_name CROSS JOIN LATERAL unnest(worker.task_names) AS task_name
     WHERE worker.dead_at IS NULL AND worker.lease_expires_at > now() AND worker.state <> 'draining'
       AND task_name = ANY (%(names)s::text[])
), freed AS (
    UPDATE horsies_tasks_live AS task
       SET {unclaim},
           unknown_since = CASE WHEN NOT {is_known} THEN coalesce(task.unknown_since, task.enqueued_at) END,
           unknown_until = CASE WHEN NOT {is_known} THEN {fails_at} END,
           enqueued_at = CASE WHEN {is_known} THEN coalesce(task.unknown_since, task.enqueued_at)
                         ELSE now() + least(
                             greatest(now() + make_interval(secs => %(grace_seconds)s) - {fails_at}, interval '1 s'),
                             interval '30 s',
                             {fails_at} - now()) END
     WHERE {is_given} AND {is_owned} AND task.status IN ('CLAIMED', 'RUNNING') AND task.cancel_asked_at IS NULL
       AND ({is_known} OR {fails_at} > now())
    RETURNING task.id, task.queue_name, task.unknown_since IS NULL AS known_elsewhere
), woken AS (
    SELECT count(pg_notify(horsies_queue_channel(queue_name), ''))
      FROM (SELECT DISTINCT queue_name FROM freed) AS touched
)
SELECT id::text, known_elsewhere FROM freed CROSS JOIN woken;

-- fragment: is_late
good_until <= now() AND workflow_id IS NULL
AND (status = 'PENDING' OR (status = 'CLAIMED' AND claimed_by_worker_id = %(worker_id)s))

-- name: late
-- Return the tasks that `expire` would settle.
SELECT id::text, claim_seq FROM horsies_tasks_live WHERE {is_late} ORDER BY good_until LIMIT 1000;

-- name: owned
SELECT id::text, claim_seq, workflow_id::text, workflow_index FROM horsies_tasks_live
 WHERE claimed_by_worker_id = %(worker_id)s AND status IN ('CLAIMED', 'RUNNING');

-- name: expire
-- Settle tasks that were not started before their expiry, whether PENDING or prefetched by this worker; with `ids`, only
-- tasks among these.
WITH late AS (
    SELECT id FROM horsies_tasks_live
     WHERE {is_late} AND (%(ids)s::uuid[] IS NULL OR id = ANY (%(ids)s::uuid[]))
     ORDER BY good_until LIMIT 1000 FOR UPDATE SKIP LOCKED
), ended AS (
    UPDATE horsies_tasks AS task
       SET live = false, status = 'EXPIRED', error_code = 'TASK_EXPIRED', result = %(result)s, terminal_at = now()
     WHERE task.live AND task.id = ANY (ARRAY (SELECT id FROM late))
    RETURNING task.id, task.task_name, task.queue_name, task.workflow_id, task.rate_key, task.awaited
)
SELECT CASE WHEN awaited THEN pg_notify('task_done', id::text) END, id, task_name, queue_name, workflow_id, rate_key FROM ended;

-- fragment: in_lane
task.queue_name = lane.queue_name AND task.is_async = lane.is_async AND task.rate_key = lane.rate_key AND task.priority <> 0
AND task.parked_at IS NULL

-- fragment: is_free_to_follow
-- One descent of an index for each follower: as a scalar, the query below cannot become a join that reads all unique keys.
FROM horsies_tasks_live AS task
WHERE task.follows IS NOT NULL
  AND (SELECT true FROM horsies_tasks_live AS before WHERE before.unique_key = task.follows LIMIT 1) IS NULL

-- name: follow
-- Let the tasks start that follow others which have ended. As a rule there are none: whoever ends a task, and whoever sends a
-- follower, sees to it. This is for a transaction that had locked the follower and was rolled back.
SELECT horsies_follow(NULL) FROM (SELECT WHERE EXISTS (SELECT {is_free_to_follow})) AS left_over;

-- name: next_due
-- Return the seconds until the next delayed task of these queues is due, a task expires, a rate limit or a key allows a task, or
-- a timer of a workflow or a parked task is due; and true if there are tasks with keys. Each priority in a lane costs one descent of the claim index, however many tasks there are.
WITH RECURSIVE lane AS MATERIALIZED (
    SELECT queue_name, is_async, rate_key,
           rate_key = '' AND (SELECT CASE WHEN task.rate_key < 'key>' THEN true END FROM horsies_tasks_live AS task
                               WHERE task.queue_name = given.queue_name AND task.is_async = kind.is_async
                                 AND task.rate_key >= 'key=' AND task.priority <> 0 AND task.parked_at IS NULL
                               ORDER BY task.rate_key LIMIT 1) IS NOT NULL AS has_keys
      FROM unnest(%(queues)s::text[]) AS given (queue_name), (VALUES (false), (true)) AS kind (is_async),
           unnest(ARRAY (SELECT rate_key FROM json_to_recordset(CAST(%(batches)s AS json)) AS batch (rate_key text))
                  || %(rates)s::text[] || ''::text) AS rate (rate_key)
), level (queue_name, is_async, rate_key, priority) AS (
    SELECT lane.queue_name, lane.is_async, lane.rate_key,
           (SELECT min(task.priority) FROM horsies_tasks_live AS task WHERE {in_lane})
      FROM lane
    UNION ALL
    SELECT lane.queue_name, lane.is_async, lane.rate_key,
           (SELECT min(task.priority) FROM horsies_tasks_live AS task WHERE {in_lane} AND task.priority > lane.priority)
      FROM level AS lane WHERE lane.priority IS NOT NULL
), due (at) AS (
    SELECT (SELECT min(task.enqueued_at) FROM horsies_tasks_live AS task
             WHERE {in_lane} AND task.priority = lane.priority AND task.enqueued_at > now())
      FROM level AS lane WHERE lane.priority IS NOT NULL
    UNION ALL
    (SELECT good_until FROM horsies_tasks_live WHERE good_until IS NOT NULL AND status <> 'RUNNING' ORDER BY good_until LIMIT 1)
    UNION ALL
    SELECT min(due_at) FROM horsies_workflow_tasks WHERE due_at IS NOT NULL
    UNION ALL
    SELECT min(deadline_at) FROM horsies_workflows WHERE deadline_at IS NOT NULL
    UNION ALL
    SELECT min(enqueued_at) FROM horsies_tasks_live WHERE parked_at IS NOT NULL AND follows IS NULL
    UNION ALL
    -- A task that follows one that has ended, and is locked by an open transaction.
    SELECT now() + interval '1 s' WHERE EXISTS (SELECT {is_free_to_follow})
    UNION ALL
    -- A task that may start now is left to the next claim. If that claim does not get it, another worker has used up the
    -- rate: check again after one second.
    SELECT CASE WHEN rate.at > now() THEN rate.at ELSE now() + interval '1 s' END
      FROM (SELECT rate_key, greatest(spent_until + make_interval(secs => seconds), held_until) AS at
              FROM horsies_rates WHERE rate_key = ANY (%(rates)s::text[])) AS rate
     WHERE EXISTS (SELECT FROM lane
                    CROSS JOIN LATERAL (
                          SELECT FROM horsies_tasks_live AS task
                           WHERE {in_lane} AND task.enqueued_at <= now() AND task.status = 'PENDING'
                           LIMIT 1) AS task
                    WHERE lane.rate_key = rate.rate_key)
    UNION ALL
    -- A batch whose time is up is left to the next claim. If that claim does not get it, another worker has it: check again.
    SELECT CASE WHEN batch.at > now() THEN batch.at ELSE now() + interval '50 ms' END
      FROM (SELECT (SELECT min(task.enqueued_at) FROM horsies_tasks_live AS task
                     WHERE {in_lane} AND task.priority = lane.priority AND task.enqueued_at <= now()
                       AND task.status = 'PENDING') + make_interval(secs => known.linger) AS at
              FROM level AS lane
              JOIN json_to_recordset(CAST(%(batches)s AS json)) AS known (rate_key text, linger double precision) USING (rate_key)
             WHERE lane.priority IS NOT NULL) AS batch
     WHERE batch.at IS NOT NULL
    UNION ALL
    SELECT (SELECT min(task.enqueued_at) FROM horsies_tasks_live AS task
             WHERE task.queue_name = kind.queue_name AND task.is_async = kind.is_async
               AND task.rate_key >= 'key=' AND task.rate_key < 'key>' AND task.parked_at IS NULL AND task.enqueued_at > now())
      FROM lane AS kind WHERE kind.rate_key = '' AND kind.has_keys
    UNION ALL
    -- Many keys may come free one after the other. A worker need not wake up for each of them.
    SELECT greatest((SELECT min(next_at) FROM horsies_keys WHERE next_at > now() AND paused_at IS NULL),
                    now() + interval '10 ms')
      FROM lane AS kind WHERE kind.rate_key = '' AND kind.has_keys
       AND EXISTS (SELECT FROM horsies_keys WHERE next_at > now() AND paused_at IS NULL)
)
SELECT CASE WHEN min(at) IS NOT NULL THEN
           extract(epoch FROM greatest(least(min(at), now() + interval '1 day'), now()) - now())::double precision END AS seconds,
       (SELECT bool_or(has_keys) FROM lane) AS has_keys
  FROM due;

-- name: watch
-- Return the state of these tasks, and mark those that have not ended, so that their end is notified. A locked row is about
-- to change, and a row that was sent just now is about to be claimed: a worker must not find it locked. Both are skipped, and
-- the caller asks again. A mark lost in a crash costs only a poll, so the commit does not wait for the disk.
WITH free AS MATERIALIZED (
    SELECT id FROM horsies_tasks_live
     WHERE id = ANY (%(ids)s::uuid[]) AND NOT awaited
       AND (status <> 'PENDING' OR sent_at < now() - interval '5 ms')
       AND set_config('synchronous_commit', 'off', true) IS NOT NULL
       FOR UPDATE SKIP LOCKED
), marked AS (
    -- By an array, not by a join: with a plan made for an empty table, a join could lock all rows for each of them.
    UPDATE horsies_tasks_live SET awaited = true WHERE id = ANY (ARRAY (SELECT id FROM free)) RETURNING id
)
SELECT task.id, task.status, task.result, task.awaited OR marked.id IS NOT NULL
  FROM horsies_tasks AS task LEFT JOIN marked ON marked.id = task.id
 WHERE task.id = ANY (%(ids)s::uuid[]) AND (task.live OR task.terminal_at >= %(since)s);

-- name: look
SELECT id, status, result FROM horsies_tasks WHERE id = ANY (%(ids)s::uuid[]) AND (live OR terminal_at >= %(since)s);

-- name: count_settled_by
SELECT count(*) FROM horsies_tasks
 WHERE NOT live AND id = ANY (%(ids)s::uuid[]) AND terminal_at >= %(since)s
   AND claimed_by_worker_id = %(worker_id)s;

-- name: write_progress
-- Store the progress of tasks. A late report of an earlier run is ignored.
INSERT INTO horsies_progress AS known (task_id, claim_seq, done, total, message, at)
SELECT task_id, claim_seq, done, total, message, at
  FROM json_to_recordset(CAST(%(reports)s AS json)) AS given (
       task_id uuid, claim_seq integer, done double precision, total double precision, message text, at timestamptz)
 ORDER BY task_id
ON CONFLICT (task_id) DO UPDATE
   SET claim_seq = excluded.claim_seq, done = excluded.done, total = excluded.total, message = excluded.message,
       at = excluded.at
 WHERE known.claim_seq <= excluded.claim_seq;

-- name: write_lines
-- Store log lines and delete the oldest lines of each run beyond the limit. Lines that are written again after a lost reply
-- are stored once.
WITH new AS MATERIALIZED (
    SELECT * FROM json_to_recordset(CAST(%(lines)s AS json)) AS given (
        task_id uuid, claim_seq integer, seq integer, attempt integer, at timestamptz, level text, logger text, message text)
), outdated AS (
    DELETE FROM horsies_task_logs AS line
     USING (SELECT task_id, claim_seq, max(seq) AS seq FROM new GROUP BY task_id, claim_seq) AS last
     WHERE line.task_id = last.task_id AND line.claim_seq = last.claim_seq AND line.seq <= last.seq - %(keep)s
)
INSERT INTO horsies_task_logs (task_id, claim_seq, seq, attempt, at, level, logger, message)
SELECT task_id, claim_seq, seq, attempt, at, level, logger, message FROM new
ON CONFLICT DO NOTHING;

-- name: progress
SELECT done, total, message, at FROM horsies_progress WHERE task_id = %(id)s;

-- name: log_lines
SELECT attempt, seq, at, level, logger, message FROM horsies_task_logs WHERE task_id = %(id)s ORDER BY claim_seq, seq;
