-- name: snapshot
-- Write down what a worker is like. What it said when it registered is taken from there; declared dead, it says no more.
INSERT INTO horsies_worker_states
       (worker_id, hostname, pid, state, processes, max_claim_batch, max_claim_per_worker, cluster_wide_cap, queues,
        queue_priorities, queue_max_concurrency, recovery_config, tasks_running, tasks_claimed, memory_usage_mb,
        memory_percent, cpu_percent, children_memory_mb, worker_started_at, current_task_ids,
        children)
SELECT worker_id, hostname, pid, %(state)s, processes, %(max_claim_batch)s, %(max_claim_per_worker)s,
       %(cluster_wide_cap)s, queues, %(queue_priorities)s::jsonb, %(queue_max_concurrency)s::jsonb,
       %(recovery_config)s::jsonb, %(tasks_running)s, %(tasks_claimed)s, %(memory_usage_mb)s, %(memory_percent)s,
       %(cpu_percent)s, %(children_memory_mb)s, started_at, %(current_task_ids)s::uuid[],
       %(children)s::jsonb
  FROM horsies_workers
 WHERE worker_id = %(worker_id)s AND dead_at IS NULL;

-- name: pulse
-- Say which tasks still run. One that has ended or was given away meanwhile is passed over. (With a limit, each task is
-- looked up by its id whatever the planner believes of the table.)
INSERT INTO horsies_heartbeats (task_id, sender_id, role, hostname, pid, memory_mb)
SELECT said.task_id, %(worker_id)s::uuid, 'runner', task.worker_hostname, said.pid, said.memory_mb
  FROM json_to_recordset(%(rows)s::json) AS said (
       task_id uuid, claim_seq integer, pid integer, memory_mb double precision)
 CROSS JOIN LATERAL (
       SELECT worker_hostname FROM horsies_tasks_live
        WHERE id = said.task_id AND claim_seq = said.claim_seq AND status = 'RUNNING'
          AND claimed_by_worker_id = %(worker_id)s
        LIMIT 1) AS task;

-- name: prune
-- Forget what is old, at most so many rows of each kind, and pass over what somebody else is about to forget. No age
-- means for ever, and so does any above a century.
WITH old_states AS (
    SELECT id FROM horsies_worker_states
     WHERE snapshot_at < now() - make_interval(hours => least(%(state_hours)s, 876000)::integer)
     ORDER BY snapshot_at
     LIMIT %(batch)s
       FOR UPDATE SKIP LOCKED
), old_heartbeats AS (
    SELECT id FROM horsies_heartbeats
     WHERE sent_at < now() - make_interval(hours => least(%(heartbeat_hours)s, 876000)::integer)
     ORDER BY sent_at
     LIMIT %(batch)s
       FOR UPDATE SKIP LOCKED
), forgotten_states AS (
    DELETE FROM horsies_worker_states AS state USING old_states AS old WHERE state.id = old.id
), forgotten_heartbeats AS (
    DELETE FROM horsies_heartbeats AS heartbeat USING old_heartbeats AS old WHERE heartbeat.id = old.id
)
SELECT greatest((SELECT count(*) FROM old_states), (SELECT count(*) FROM old_heartbeats));
