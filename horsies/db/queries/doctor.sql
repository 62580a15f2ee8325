-- One statement for each check of the same name in doctor.py. It returns one row for each problem, with one text column
-- that identifies it. The parameters are `Thresholds`. Of history, only the tasks that ended in the last day are read:
-- finished tasks do not change, and there may be many.

-- name: guard
SELECT set_config('transaction_read_only', 'on', true),
       set_config('statement_timeout', (%(timeout_seconds)s * 1000)::integer::text, true);

-- name: limbo
-- Other workers get the grace to notice a dead worker and to rescue its tasks. They can notice an expired lease only while
-- the server is up and at least one of them runs.
SELECT task.id::text
  FROM horsies_tasks_live AS task LEFT JOIN horsies_workers AS worker ON worker.worker_id = task.claimed_by_worker_id
 WHERE task.status IN ('CLAIMED', 'RUNNING')
   AND CASE WHEN worker.worker_id IS NULL THEN task.claimed_at
            WHEN worker.dead_at IS NOT NULL THEN worker.dead_at
            WHEN EXISTS (SELECT FROM horsies_workers AS other
                          WHERE other.dead_at IS NULL AND other.lease_expires_at > now()
                            AND other.started_at < now() - make_interval(secs => %(grace_seconds)s))
            THEN greatest(worker.lease_expires_at, pg_postmaster_start_time())
       END < now() - make_interval(secs => %(grace_seconds)s);

-- name: misplaced
SELECT id::text FROM horsies_tasks_live
 WHERE status NOT IN ('PENDING', 'CLAIMED', 'RUNNING') AND error_code IS DISTINCT FROM 'POISONED_ROW'
UNION ALL
SELECT id::text FROM horsies_tasks_history
 WHERE status NOT IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
   AND (terminal_at > now() - interval '1 day' OR terminal_at IS NULL);

-- name: ownership
SELECT id::text FROM horsies_tasks_live
 WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING')
   AND ((status = 'PENDING') <> (claimed_by_worker_id IS NULL) OR (status = 'PENDING') <> (claimed_at IS NULL));

-- name: stalled_steps
-- Parked tasks that nothing will let go on: without an open step, or with called tasks that have all ended or are gone.
SELECT task.id::text
  FROM horsies_tasks_live AS task
 WHERE task.parked_at IS NOT NULL AND task.follows IS NULL AND task.status = 'PENDING'
   AND (task.enqueued_at >= '9999-01-01' OR NOT EXISTS (SELECT FROM horsies_steps AS step
                                                         WHERE step.task_id = task.id AND step.ended_at IS NULL))
   AND NOT EXISTS (SELECT FROM horsies_steps AS step
                    WHERE step.task_id = task.id AND step.ended_at IS NULL
                      AND (step.kind = 'wait'
                           OR EXISTS (SELECT FROM horsies_tasks_live AS child WHERE child.id = ANY (step.calls))))
UNION ALL
-- Tasks that follow one that has ended.
SELECT task.id::text
  FROM horsies_tasks_live AS task
 WHERE task.follows IS NOT NULL AND task.status = 'PENDING' AND task.parked_at < now() - make_interval(secs => %(grace_seconds)s)
   AND NOT EXISTS (SELECT FROM horsies_tasks_live AS before WHERE before.unique_key = task.follows);

-- name: undated
SELECT id::text FROM horsies_tasks_history WHERE terminal_at IS NULL;

-- name: twins
SELECT live.id::text
  FROM horsies_tasks_live AS live JOIN horsies_tasks_history AS ended ON ended.id = live.id
 WHERE ended.terminal_at > now() - interval '1 day' AND live.status IN ('PENDING', 'CLAIMED', 'RUNNING');

-- name: poisoned
-- Rows that workers have parked: all of those in the live table, and in history those of the last day.
SELECT id::text FROM horsies_tasks_live WHERE status = 'FAILED' AND error_code = 'POISONED_ROW'
UNION ALL
SELECT id::text FROM horsies_tasks_history
 WHERE error_code = 'POISONED_ROW' AND terminal_at > now() - interval '1 day'
UNION ALL
SELECT 'workflow ' || id FROM horsies_workflows
 WHERE status = 'FAILED' AND completed_at > now() - interval '1 day' AND error LIKE '%%"POISONED_ROW"%%';

-- name: dead_shares
SELECT share.worker_id || ' in ' || coalesce(nullif(share.queue_name, ''), 'all queues')
  FROM horsies_in_flight AS share LEFT JOIN horsies_workers AS worker ON worker.worker_id = share.worker_id
 WHERE worker.worker_id IS NULL OR worker.dead_at < now() - make_interval(secs => %(grace_seconds)s);

-- name: negative_shares
SELECT worker_id || ' in ' || coalesce(nullif(queue_name, ''), 'all queues') FROM horsies_in_flight WHERE tasks < 0;

-- name: uncounted
-- A claim counts the tasks that it starts at once. A prefetched task is counted by the claim after its start.
SELECT share.worker_id || ' in ' || coalesce(nullif(share.queue_name, ''), 'all queues') || ': '
       || share.tasks || ' counted, ' || held.tasks || ' held'
  FROM horsies_in_flight AS share
 CROSS JOIN LATERAL (
       SELECT count(*) AS tasks FROM horsies_tasks_live AS task
        WHERE task.claimed_by_worker_id = share.worker_id AND share.queue_name IN ('', task.queue_name)
          AND task.status = 'RUNNING' AND task.started_at = task.claimed_at) AS held
 WHERE held.tasks > share.tasks;

-- name: rates
-- A claim spends a rate up to now() at most.
SELECT rate_key || ' until ' || spent_until
  FROM horsies_rates WHERE spent_until > now() + make_interval(secs => %(grace_seconds)s);

-- name: key_slots
SELECT rate_key || ': ' || task_id FROM horsies_key_slots AS slot
 WHERE taken_at < now() - make_interval(secs => %(grace_seconds)s) AND NOT {is_slot_taken};

-- name: uncounted_keys
SELECT task.id || ' of ' || task.rate_key FROM horsies_tasks_live AS task
 WHERE task.status IN ('CLAIMED', 'RUNNING') AND task.rate_key >= 'key=' AND task.rate_key < 'key>'
   AND NOT EXISTS (SELECT FROM horsies_key_slots AS slot
                    WHERE slot.rate_key = task.rate_key AND slot.task_id = task.id AND slot.claim_seq = task.claim_seq);

-- name: lost_keys
-- A key is stored in the transaction of its task. The task of an older key may have been deleted by retention.
SELECT key.task_id::text
  FROM horsies_idempotency_keys AS key
 WHERE key.created_at > now() - interval '1 day'
   AND NOT EXISTS (SELECT FROM horsies_tasks AS task
                    WHERE task.id = key.task_id AND (task.live OR task.terminal_at > now() - interval '1 day'));

-- name: missing_partitions
SELECT wanted.part
  FROM (SELECT 'horsies_tasks_' || to_char((now() AT TIME ZONE 'UTC')::date + days, 'YYYYMMDD') AS part
          FROM generate_series(0, 1) AS days) AS wanted
 WHERE NOT EXISTS (SELECT FROM pg_inherits AS child JOIN pg_class AS class ON class.oid = child.inhrelid
                    WHERE child.inhparent = 'horsies_tasks_history'::regclass AND class.relname = wanted.part);

-- name: default_partition
SELECT id::text FROM horsies_tasks_history_default;

-- name: unserved_queues
-- A paused queue is not stuck: it waits for somebody to resume it. Nor is it overdue.
SELECT queue_name || ': ' || count(*) || ' due, the oldest for '
       || date_trunc('second', now() - greatest(min(enqueued_at), '0001-01-01'))
  FROM horsies_tasks_live AS task
 WHERE status = 'PENDING' AND enqueued_at < now() - make_interval(secs => %(overdue_seconds)s)
   AND NOT EXISTS (SELECT FROM horsies_workers AS worker
                    WHERE worker.dead_at IS NULL AND worker.lease_expires_at > now()
                      AND task.queue_name = ANY (worker.queues))
   AND NOT EXISTS (SELECT FROM horsies_suspensions AS held WHERE held.queue_name IN ('', task.queue_name))
 GROUP BY queue_name;

-- name: overdue_queues
-- A waiting worker has a free process and found no task to claim. Tasks with a rate limit and queues with tasks in flight
-- are left out: there, a claim may rightly return nothing.
SELECT queue_name || ': ' || count(*) || ' due, the oldest for '
       || date_trunc('second', now() - greatest(min(enqueued_at), '0001-01-01'))
  FROM horsies_tasks_live AS task
 WHERE status = 'PENDING' AND rate_key = ''
   AND enqueued_at < now() - make_interval(secs => %(overdue_seconds)s)
   AND EXISTS (SELECT FROM horsies_workers AS worker
                WHERE worker.lease_expires_at > now() AND task.queue_name = ANY (worker.queues)
                  AND CASE WHEN task.is_async THEN worker.waiting_async ELSE worker.waiting END)
   AND NOT EXISTS (SELECT FROM horsies_in_flight AS share
                    WHERE share.queue_name IN ('', task.queue_name) AND share.tasks > 0)
   AND NOT EXISTS (SELECT FROM horsies_suspensions AS held WHERE held.queue_name IN ('', task.queue_name))
 GROUP BY queue_name;

-- name: overdue_schedules
SELECT schedule_name FROM horsies_schedule_state WHERE next_run_at < now() - make_interval(secs => %(overdue_seconds)s);

-- name: broken_schedules
SELECT schedule_name || ': ' || error FROM horsies_schedule_state WHERE error IS NOT NULL;

-- name: late_workers
-- A worker renews its lease three times per lease duration. Times are clamped: PostgreSQL before 17 cannot subtract infinity.
SELECT worker_id || ' (pid ' || pid || ' on ' || hostname || '), '
       || date_trunc('second', now() - greatest(last_beat_at, '0001-01-01')) || ' ago'
  FROM horsies_workers
 WHERE dead_at IS NULL AND last_beat_at <= now()
   AND now() > greatest(last_beat_at, '0001-01-01')
               + 0.75 * (least(greatest(lease_expires_at, '0001-01-01'), '9999-01-01') - greatest(last_beat_at, '0001-01-01'));

-- name: dead_rows
SELECT relname || ': ' || n_dead_tup || ' dead, ' || n_live_tup || ' live, last vacuumed '
       || coalesce(date_trunc('second', greatest(last_vacuum, last_autovacuum))::text, 'never')
  FROM pg_stat_user_tables
 WHERE starts_with(relname, 'horsies_')
   AND schemaname = (SELECT nspname FROM pg_namespace AS space JOIN pg_class AS class ON class.relnamespace = space.oid
                      WHERE class.oid = 'horsies_tasks'::regclass)
   AND n_dead_tup > greatest(%(dead_rows)s, 10 * n_live_tup);

-- name: old_snapshots
-- Sessions of this database and of replicas hold back vacuum; autovacuum workers do not. Where this role may not see the
-- start of a transaction, its age in transactions is compared.
SELECT concat('pid ', pid, ' of ', usename, ', ', coalesce(state, 'state hidden'), ', ',
              'query began ', coalesce(date_trunc('second', query_start)::text, '(hidden)'), ', ',
              greatest(age(backend_xmin), age(backend_xid)), ' transactions back')
  FROM pg_stat_activity
 WHERE (datname = current_database() OR datid IS NULL)
   AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
   AND backend_type IS DISTINCT FROM 'autovacuum worker'
   AND coalesce(xact_start < now() - make_interval(secs => %(snapshot_seconds)s),
                greatest(age(backend_xmin), age(backend_xid)) >= %(transactions)s);

-- name: prepared_transactions
SELECT gid || ' of ' || owner || ', prepared ' || date_trunc('second', now() - prepared) || ' ago'
  FROM pg_prepared_xacts
 WHERE database = current_database() AND prepared <= now() - make_interval(secs => %(snapshot_seconds)s);

-- name: replication_slots
SELECT concat(slot_name, ' (', CASE WHEN active THEN 'active' ELSE 'inactive' END, '), ',
              greatest(age(xmin), age(catalog_xmin)), ' transactions back')
  FROM pg_replication_slots
 WHERE greatest(age(xmin), age(catalog_xmin)) >= %(transactions)s;

-- name: idle_transactions
SELECT concat('pid ', pid, ' of ', usename, ' (', application_name, ') for ', date_trunc('second', now() - state_change))
  FROM pg_stat_activity
 WHERE datname = current_database() AND starts_with(state, 'idle in transaction')
   AND state_change < now() - make_interval(secs => %(idle_seconds)s);

-- name: notification_queue
SELECT round((usage * 100)::numeric, 1) || ' percent full' FROM pg_notification_queue_usage() AS usage
 WHERE usage >= %(notification_share)s;

-- name: invalid_indexes
SELECT index.indexrelid::regclass || ' on ' || index.indrelid::regclass
  FROM pg_index AS index JOIN pg_class AS class ON class.oid = index.indrelid
 WHERE NOT (index.indisvalid AND index.indisready) AND starts_with(class.relname, 'horsies_')
   AND class.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'horsies_tasks'::regclass);

-- name: autovacuum
SELECT class.oid::regclass::text
  FROM pg_class AS class CROSS JOIN pg_options_to_table(class.reloptions) AS option
 WHERE option.option_name = 'autovacuum_enabled' AND NOT option.option_value::boolean
   AND starts_with(class.relname, 'horsies_')
   AND class.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'horsies_tasks'::regclass)
UNION ALL
SELECT 'all, by ' || name || ' = off' FROM pg_settings WHERE name IN ('autovacuum', 'track_counts') AND setting = 'off';

-- name: connections
SELECT used || ' of ' || most || ' are in use'
  FROM (SELECT sum(numbackends) AS used FROM pg_stat_database) AS session
 CROSS JOIN (SELECT current_setting('max_connections')::integer
                    - current_setting('superuser_reserved_connections')::integer
                    - coalesce(current_setting('reserved_connections', true)::integer, 0) AS most) AS room
 WHERE used >= %(connection_share)s * most;

-- name: durability
SELECT name || ' = off' FROM pg_settings
 WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes') AND setting = 'off';

-- name: creators
-- Return a REVOKE statement for each role that may create in the schema of the tables, except for superusers and the owners
-- of the schema and the tables.
SELECT format('REVOKE CREATE ON SCHEMA %%I FROM %%s', space.nspname,
              CASE WHEN held.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(role.rolname) END)
  FROM pg_class AS class JOIN pg_namespace AS space ON space.oid = class.relnamespace
 CROSS JOIN LATERAL (SELECT DISTINCT grantee FROM aclexplode(space.nspacl) WHERE privilege_type = 'CREATE') AS held
  LEFT JOIN pg_roles AS role ON role.oid = held.grantee
 WHERE class.oid = 'horsies_tasks'::regclass AND held.grantee NOT IN (space.nspowner, class.relowner)
   AND NOT coalesce(role.rolsuper, false);

-- name: clock
SELECT round(abs(ahead)::numeric, 1) || ' s ' || CASE WHEN ahead > 0 THEN 'ahead' ELSE 'behind' END
  FROM (SELECT extract(epoch FROM %(local_time)s - clock_timestamp()) AS ahead) AS here
 WHERE abs(ahead) > %(clock_seconds)s;

-- name: hidden_sessions
SELECT 'pid ' || pid || ' of ' || usename FROM pg_stat_activity
 WHERE datname = current_database() AND query = '<insufficient privilege>';

-- name: workflow_lag
SELECT node.workflow_id || ' ' || node.node_id
  FROM horsies_workflow_tasks AS node
 WHERE node.status = 'ENQUEUED' AND NOT EXISTS (SELECT FROM horsies_tasks_live AS task WHERE task.id = node.task_id);

-- name: workflow_stalls
SELECT node.workflow_id || ' ' || node.node_id
  FROM horsies_workflow_tasks AS node JOIN horsies_workflows AS flow ON flow.id = node.workflow_id
 WHERE flow.status = 'RUNNING'
   AND (node.status = 'READY'
        OR node.status = 'PENDING'
           AND CASE WHEN node.join_type = 'all' THEN node.open_deps = 0
                    ELSE node.completed_deps >= node.min_success AND node.open_sources = 0 END);

-- name: workflow_counts
SELECT flow.id::text
  FROM horsies_workflows AS flow
 WHERE flow.status = 'RUNNING' AND flow.open_tasks = 0
    OR flow.open_tasks <> (SELECT count(*) FROM horsies_workflow_tasks AS node
                            WHERE node.workflow_id = flow.id AND node.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED'))
UNION ALL
SELECT node.workflow_id || ' ' || node.node_id
  FROM horsies_workflow_tasks AS node
 WHERE node.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')
   AND node.open_deps <> (SELECT count(*) FROM horsies_workflow_tasks AS dep
                           WHERE dep.workflow_id = node.workflow_id AND dep.task_index = ANY (node.dependencies)
                             AND dep.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED'));
