-- name: travel
-- Make everything that waits for its time due earlier. Tasks of paused workflows, and tasks that have ended, stay as they are.
WITH task AS (
    UPDATE horsies_tasks_live
       SET sent_at = sent_at - make_interval(secs => %(seconds)s),
           enqueued_at = CASE WHEN enqueued_at < '9999-01-01' THEN enqueued_at - make_interval(secs => %(seconds)s)
                              ELSE enqueued_at END,
           next_retry_at = next_retry_at - make_interval(secs => %(seconds)s),
           good_until = good_until - make_interval(secs => %(seconds)s)
     WHERE status = 'PENDING'
), step AS (
    UPDATE horsies_steps SET due_at = due_at - make_interval(secs => %(seconds)s)
     WHERE ended_at IS NULL AND due_at IS NOT NULL
), node AS (
    UPDATE horsies_workflow_tasks
       SET due_at = due_at - make_interval(secs => %(seconds)s),
           good_until = good_until - make_interval(secs => %(seconds)s)
     WHERE due_at IS NOT NULL OR good_until IS NOT NULL
), key AS (
    UPDATE horsies_keys
       SET spent_until = spent_until - make_interval(secs => %(seconds)s),
           waits_until = waits_until - make_interval(secs => %(seconds)s),
           next_at = next_at - make_interval(secs => %(seconds)s)
), flow AS (
    UPDATE horsies_workflows SET deadline_at = deadline_at - make_interval(secs => %(seconds)s)
     WHERE deadline_at IS NOT NULL
)
UPDATE horsies_schedule_state SET next_run_at = next_run_at - make_interval(secs => %(seconds)s)
 WHERE next_run_at IS NOT NULL;

-- name: retry_now
UPDATE horsies_tasks_live SET enqueued_at = now(), next_retry_at = now()
 WHERE status = 'PENDING' AND next_retry_at > now() AND enqueued_at < '9999-01-01';

-- name: seconds_until_due
SELECT extract(epoch FROM min(enqueued_at) - now())::double precision FROM horsies_tasks_live
 WHERE status = 'PENDING' AND enqueued_at < '9999-01-01';

-- name: waiting
SELECT id::text, task_name, queue_name, priority, args, kwargs, enqueued_at AS due_at, retry_count,
       coalesce(tags, '{}') AS tags
  FROM horsies_tasks_live
 WHERE status <> 'RUNNING' AND (%(name)s::text IS NULL OR task_name = %(name)s)
   AND (%(queue)s::text IS NULL OR queue_name = %(queue)s)
 ORDER BY sent_at, id;
