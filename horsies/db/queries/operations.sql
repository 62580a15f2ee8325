-- name: suspend
-- Stop all claims from a queue, or from every queue if it is ''. Return false if it was suspended already.
WITH suspended AS (
    INSERT INTO horsies_suspensions (queue_name, suspended_by) VALUES (%(queue_name)s, %(actor)s)
    ON CONFLICT DO NOTHING RETURNING queue_name
), noted AS (
    INSERT INTO horsies_actions (actor, action, subject) SELECT %(actor)s, 'suspend', queue_name FROM suspended
)
SELECT count(pg_notify('horsies_control', '')) > 0 FROM suspended;

-- name: resume
-- Allow claims from a queue again. Return false if it was not suspended.
WITH resumed AS (
    DELETE FROM horsies_suspensions WHERE queue_name = %(queue_name)s RETURNING queue_name
), noted AS (
    INSERT INTO horsies_actions (actor, action, subject) SELECT %(actor)s, 'resume', queue_name FROM resumed
)
SELECT count(pg_notify('horsies_control', '')) > 0 FROM resumed;

-- name: suspensions
SELECT queue_name FROM horsies_suspensions ORDER BY queue_name;

-- name: pause_key
-- Let no task of a key start. Return false if it was paused already.
WITH paused AS (
    INSERT INTO horsies_keys AS known (rate_key, paused_at, paused_by) VALUES ('key=' || %(key)s, now(), %(actor)s)
    ON CONFLICT (rate_key) DO UPDATE SET paused_at = excluded.paused_at, paused_by = excluded.paused_by
     WHERE known.paused_at IS NULL
    RETURNING rate_key
), noted AS (
    INSERT INTO horsies_actions (actor, action, subject) SELECT %(actor)s, 'pause key', %(key)s FROM paused
)
SELECT count(*) > 0 FROM paused;

-- name: resume_key
-- Let tasks of a key start again, and wake the workers that wait. Return false if the key was not paused.
WITH resumed AS (
    UPDATE horsies_keys SET paused_at = NULL, paused_by = NULL
     WHERE rate_key = 'key=' || %(key)s AND paused_at IS NOT NULL
    RETURNING rate_key
), noted AS (
    INSERT INTO horsies_actions (actor, action, subject) SELECT %(actor)s, 'resume key', %(key)s FROM resumed
), woken AS (
    SELECT count(pg_notify(horsies_queue_channel(queue_name), ''))
      FROM (SELECT DISTINCT unnest(queues) AS queue_name FROM horsies_workers
             WHERE lease_expires_at > now() AND EXISTS (SELECT FROM resumed)) AS waiting
)
SELECT count(*) > 0 FROM resumed CROSS JOIN woken;

-- name: count_failed
-- Count the failed tasks that match. Tasks of workflows are not requeued one by one.
SELECT count(*) FROM horsies_tasks_history AS task WHERE status = 'FAILED' AND workflow_id IS NULL AND {is_selected};

-- name: requeue
-- Requeue one batch of failed tasks, those that failed first. The last attempt of each is recorded with the earlier ones. A task
-- whose id or unique key a live task has is skipped; of several with the same id or key, only the first is taken. Requeued tasks
-- leave history, so repeating this comes to an end. An expiry that has passed is removed: it was for the first run. A task of a
-- workflow is repeated by its workflow: `horsies workflows retry`. The message and the traceback are cut out of the stored text
-- with a regular expression, not decoded: a text that is not JSON would fail the whole batch.
WITH found AS (
    SELECT * FROM horsies_tasks_history AS task
     WHERE status = 'FAILED' AND workflow_id IS NULL AND {is_selected}
       AND task.terminal_at IS NOT NULL AND task.claim_seq < 2147483647
       AND NOT EXISTS (SELECT FROM horsies_tasks_live AS twin WHERE twin.unique_key = coalesce(task.unique_key, task.follows))
       AND NOT EXISTS (SELECT FROM horsies_tasks_live AS twin WHERE twin.id = task.id)
     ORDER BY task.terminal_at, task.id LIMIT %(batch)s FOR UPDATE SKIP LOCKED
), chosen AS (
    SELECT *, substring(left(result, 20000) FROM '^\s*\{\s*"err".*?"message":\s*"((?:[^"\\\u0001-\u001f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*)"') AS message,
           substring(right(result, 60000) FROM '.*"traceback":\s*"((?:[^"\\\u0001-\u001f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*)"') AS traceback
      FROM (SELECT *, row_number() OVER (PARTITION BY coalesce(unique_key, follows) ORDER BY terminal_at, id) AS place,
                   row_number() OVER (PARTITION BY id ORDER BY terminal_at) AS twin FROM found) AS found
     WHERE (coalesce(unique_key, follows) IS NULL OR place = 1) AND twin = 1
), kept AS (
    INSERT INTO horsies_attempts (task_id, claim_seq, attempt, outcome, started_at, finished_at, error_code, error_message,
                                  failed_reason, worker_id, worker_hostname, worker_pid, worker_process_name, traceback,
                                  requeued_at)
    SELECT id, claim_seq, earlier_attempts::integer + retry_count + 1, 'FAILED', started_at, terminal_at, error_code,
           ('["' || regexp_replace(message, '\\u(?:0000|d[89a-f]..)', '\\ufffd', 'gi') || '"]')::json ->> 0,
           failed_reason, claimed_by_worker_id, worker_hostname, worker_pid, worker_process_name,
           ('["' || regexp_replace(traceback, '\\u(?:0000|d[89a-f]..)', '\\ufffd', 'gi') || '"]')::json ->> 0, now()
      FROM chosen WHERE started_at IS NOT NULL
    ON CONFLICT DO NOTHING
), back AS (
    UPDATE horsies_tasks AS task
       SET live = true, status = 'PENDING', claim_seq = task.claim_seq + 1,
           earlier_attempts = least(task.earlier_attempts::integer + task.retry_count + (task.started_at IS NOT NULL)::int,
                                    32767),
           retry_count = 0, crash_count = 0, enqueued_at = now(), unknown_since = NULL, unknown_until = NULL, next_retry_at = NULL,
           good_until = CASE WHEN task.good_until > now() THEN task.good_until END,
           claimed_by_worker_id = NULL, claimed_at = NULL, started_at = NULL, parked_at = NULL,
           unique_key = coalesce(task.unique_key, task.follows), follows = NULL,
           completed_at = NULL, failed_at = NULL, terminal_at = NULL, result = NULL, error_code = NULL, failed_reason = NULL
      FROM chosen
     WHERE NOT task.live AND task.id = chosen.id AND task.terminal_at = chosen.terminal_at AND task.status = 'FAILED'
    RETURNING task.id, task.queue_name
), woken AS (
    SELECT count(pg_notify(horsies_queue_channel(queue_name), '')) FROM (SELECT DISTINCT queue_name FROM back) AS touched
)
SELECT back.id FROM back CROSS JOIN woken;

-- name: restore
-- Undo the cancel of one batch of tasks that had not started and belong to no workflow. A cancelled task is final, so each is sent
-- again under a new id, once: an idempotency key remembers it. A task whose unique key a live task has is skipped. The batch
-- begins after a time of cancel and an id; the answer is the number of tasks that were sent, and where the batch ended.
WITH found AS (
    SELECT *, row_number() OVER (ORDER BY terminal_at, id)::integer AS place FROM (
        SELECT * FROM horsies_tasks_history AS task
         WHERE status = 'CANCELLED' AND workflow_id IS NULL AND started_at IS NULL AND {is_selected}
           AND (terminal_at, id) > (%(after_time)s::timestamptz, %(after)s::uuid)
         ORDER BY terminal_at, id LIMIT %(batch)s) AS batch
), once AS (
    INSERT INTO horsies_idempotency_keys (idempotency_key, task_id, enqueue_sha)
    SELECT 'undo the cancel of ' || id, horsies_new_id(place), '' FROM found
     WHERE NOT EXISTS (SELECT FROM horsies_tasks_live AS twin WHERE twin.unique_key = coalesce(found.unique_key, found.follows))
    ON CONFLICT DO NOTHING RETURNING idempotency_key, task_id
), sent AS (
    INSERT INTO horsies_tasks_live (id, task_name, queue_name, is_async, priority, kwargs, enqueued_at, good_until, timeout_ms,
                                    max_retries, task_options, unique_key, tags, rate_key, cost)
    SELECT once.task_id, task_name, queue_name, is_async, priority, kwargs, greatest(enqueued_at, now()), good_until, timeout_ms,
           max_retries, task_options, coalesce(unique_key, follows), tags, rate_key, cost
      FROM once JOIN found ON once.idempotency_key = 'undo the cancel of ' || found.id
    ON CONFLICT DO NOTHING RETURNING id
)
SELECT (SELECT count(*) FROM sent) AS sent, terminal_at, id FROM found ORDER BY place DESC LIMIT 1;

-- name: count_matching
-- Count the tasks that match, and those that each bulk action could change.
SELECT (SELECT count(*) FROM horsies_tasks AS task WHERE {is_selected}) AS total,
       (SELECT count(*) FROM horsies_tasks_history AS task
         WHERE status = 'FAILED' AND workflow_id IS NULL AND {is_selected}) AS retry,
       (SELECT count(*) FROM horsies_tasks_live AS task WHERE cancel_asked_at IS NULL AND {is_selected}) AS cancel,
       (SELECT count(*) FROM horsies_tasks_history AS task WHERE workflow_id IS NULL AND {is_selected}) AS delete;

-- name: clock
SELECT clock_timestamp();

-- name: count_twins
SELECT count(*) FROM horsies_tasks_history AS task
 WHERE status = 'FAILED' AND workflow_id IS NULL AND {is_selected}
   AND EXISTS (SELECT FROM horsies_tasks_live AS twin WHERE twin.id = task.id);

-- name: note
INSERT INTO horsies_actions (actor, action, subject, tasks) VALUES (%(actor)s, %(action)s, %(subject)s, %(tasks)s);

-- name: count_finished
-- Count the finished tasks that match. A task of a workflow is deleted with its workflow.
SELECT count(*) FROM horsies_tasks_history AS task WHERE workflow_id IS NULL AND {is_selected};

-- name: count_live
SELECT count(*) FROM horsies_tasks_live AS task WHERE cancel_asked_at IS NULL AND {is_selected};

-- name: finished
-- List the keys of matching finished tasks, `most` of them. The time of the end is text: Python cannot hold every time.
SELECT id, to_json(terminal_at) #>> '{}' FROM horsies_tasks_history AS task
 WHERE workflow_id IS NULL AND {is_selected}
 LIMIT %(most)s;

-- name: edit
-- Change the arguments and the priority of a task that waits. Not of a task that is parked or has stored steps: they have
-- used the arguments. Not of a workflow's task: other nodes may rely on its arguments.
UPDATE horsies_tasks_live AS task
   SET kwargs = %(kwargs)s, priority = coalesce(%(priority)s, priority)
 WHERE id = %(id)s AND status = 'PENDING' AND workflow_id IS NULL AND parked_at IS NULL
   AND NOT EXISTS (SELECT FROM horsies_steps AS step WHERE step.task_id = task.id);

-- name: resend
INSERT INTO horsies_tasks_live (id, task_name, queue_name, is_async, priority, kwargs, timeout_ms, max_retries,
                                task_options, rate_key, cost)
SELECT %(new_id)s, task_name, queue_name, is_async, priority, %(kwargs)s, timeout_ms, max_retries, task_options, rate_key, cost
  FROM horsies_tasks WHERE id = %(id)s ORDER BY live DESC LIMIT 1
RETURNING id::text;
