-- name: suspend
-- Nobody claims from this queue any more, or from any when it is ''. Tells whether that is new.
WITH suspended AS (
    INSERT INTO horsies_suspensions (queue_name, suspended_by) VALUES (%(queue_name)s, %(actor)s)
    ON CONFLICT DO NOTHING
    RETURNING queue_name
), noted AS (
    INSERT INTO horsies_actions (actor, action, subject)
    SELECT %(actor)s, 'suspend', queue_name FROM suspended
)
SELECT count(pg_notify('horsies_control', '')) > 0 FROM suspended;

-- name: resume
-- Claiming goes on. Tells whether it was suspended.
WITH resumed AS (
    DELETE FROM horsies_suspensions WHERE queue_name = %(queue_name)s RETURNING queue_name
), noted AS (
    INSERT INTO horsies_actions (actor, action, subject)
    SELECT %(actor)s, 'resume', queue_name FROM resumed
)
SELECT count(pg_notify('horsies_control', '')) > 0 FROM resumed;

-- name: suspensions
SELECT queue_name FROM horsies_suspensions ORDER BY queue_name;

-- name: failed
-- How many failed tasks a requeue would find; those of workflows are not its own.
SELECT count(*) FROM horsies_tasks_history AS task
 WHERE task.status = 'FAILED' AND task.workflow_id IS NULL
   AND (%(ids)s::uuid[] IS NULL OR task.id = ANY (%(ids)s::uuid[]))
   AND (%(queue)s::text IS NULL OR task.queue_name = %(queue)s)
   AND (%(name)s::text IS NULL OR task.task_name = %(name)s)
   AND (%(code)s::text IS NULL OR task.error_code = %(code)s);

-- name: requeue
-- Send failed tasks through once more, one batch of them, those that failed first. The last attempt of each is put on
-- record with those before it. One whose unique key a live task has meanwhile is passed over, and of several with the same
-- one only the first is taken. A deadline that is over is lifted: it was for the first time. A task of a workflow is the
-- workflow's to repeat: `horsies workflows retry`.
WITH found AS (
    SELECT * FROM horsies_tasks_history AS task
     WHERE task.status = 'FAILED' AND task.workflow_id IS NULL
       AND (%(ids)s::uuid[] IS NULL OR task.id = ANY (%(ids)s::uuid[]))
       AND (%(queue)s::text IS NULL OR task.queue_name = %(queue)s)
       AND (%(name)s::text IS NULL OR task.task_name = %(name)s)
       AND (%(code)s::text IS NULL OR task.error_code = %(code)s)
       AND NOT EXISTS (SELECT FROM horsies_tasks_live AS twin WHERE twin.unique_key = task.unique_key)
     ORDER BY task.terminal_at, task.id
     LIMIT %(batch)s
       FOR UPDATE SKIP LOCKED
), chosen AS (
    SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY unique_key ORDER BY terminal_at, id) AS place FROM found) AS found
     WHERE unique_key IS NULL OR place = 1
), kept AS (
    INSERT INTO horsies_attempts (task_id, claim_seq, attempt, outcome, started_at, finished_at, error_code,
                                  error_message, failed_reason, worker_id, worker_hostname, worker_pid,
                                  worker_process_name, traceback, requeued_at)
    SELECT id, claim_seq, earlier_attempts + retry_count + 1, 'FAILED', started_at, terminal_at, error_code,
           result::json -> 'err' ->> 'message', failed_reason, claimed_by_worker_id, worker_hostname, worker_pid,
           worker_process_name, result::json -> 'err' -> 'exception' ->> 'traceback', now()
      FROM chosen WHERE started_at IS NOT NULL
), back AS (
    UPDATE horsies_tasks AS task
       SET live = true, status = 'PENDING', claim_seq = task.claim_seq + 1,
           earlier_attempts = task.earlier_attempts + task.retry_count + (task.started_at IS NOT NULL)::int,
           retry_count = 0, crash_count = 0, enqueued_at = now(), unknown_since = NULL, next_retry_at = NULL,
           good_until = CASE WHEN task.good_until > now() THEN task.good_until END,
           claimed_by_worker_id = NULL, claimed_at = NULL, claim_expires_at = NULL, started_at = NULL,
           completed_at = NULL, failed_at = NULL, terminal_at = NULL, result = NULL, error_code = NULL, failed_reason = NULL
      FROM chosen
     WHERE NOT task.live AND task.id = chosen.id AND task.terminal_at = chosen.terminal_at AND task.status = 'FAILED'
    RETURNING task.id, task.queue_name
), woken AS (
    SELECT count(pg_notify(horsies_queue_channel(queue_name), ''))
      FROM (SELECT DISTINCT queue_name FROM back) AS touched
)
SELECT back.id FROM back CROSS JOIN woken;

-- name: note
INSERT INTO horsies_actions (actor, action, subject, tasks) VALUES (%(actor)s, %(action)s, %(subject)s, %(tasks)s);
