-- What each kind of process needs, as roles that nobody logs in as. Grant them to logins of yours:
--
--     CREATE ROLE shop_web LOGIN PASSWORD '…' IN ROLE horsies_producer;
--
-- To be run by the owner of the tables, who must be allowed to create roles, or by a superuser: after `horsies migrate`,
-- and again after every upgrade. Grants that a role needs no more are taken back.
BEGIN;
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
DO $$
DECLARE
    names text[] := ARRAY['horsies_producer', 'horsies_worker', 'horsies_scheduler', 'horsies_viewer', 'horsies_operator'];
    name text;
BEGIN
    FOREACH name IN ARRAY names LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), name);
    END LOOP;
    -- Who may create functions in a schema can have them called by everybody who uses it.
    EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', current_schema());
END $$;

REVOKE ALL ON horsies_tasks, horsies_tasks_live, horsies_tasks_history, horsies_attempts, horsies_task_attempts,
              horsies_workers, horsies_worker_states, horsies_heartbeats, horsies_in_flight, horsies_rates,
              horsies_keys, horsies_key_slots, horsies_task_definitions, horsies_idempotency_keys, horsies_schedule_state,
              horsies_suspensions, horsies_actions, horsies_workflows, horsies_workflow_tasks, horsies_workflow_results,
              horsies_progress, horsies_task_logs, horsies_steps, horsies_signals, horsies_event_cursors, horsies_rollups,
              horsies_totals, horsies_depths, horsies_schema_version
  FROM horsies_producer, horsies_worker, horsies_scheduler, horsies_viewer, horsies_operator;

-- EXECUTE rights are named below, too: what a role needs no more is taken back.
REVOKE ALL ON FUNCTION horsies_send, horsies_lane, horsies_queue_channel, horsies_start_workflow, horsies_store_workflow,
                       horsies_store_sub_workflow, horsies_workflow_fault, horsies_prepare_history, horsies_drop_history,
                       horsies_delete_history, horsies_forget, horsies_refresh_statistics, horsies_summarize_history,
                       horsies_signal, horsies_wake, horsies_call_ended, horsies_debounce, horsies_join, horsies_follow,
                       horsies_unique_ended, horsies_follower_sent
  FROM horsies_producer, horsies_worker, horsies_scheduler, horsies_viewer, horsies_operator;

-- A producer stores new tasks, as new ones only and as none of a workflow, and reads what became of them. Whoever waits
-- for a task marks it, so that its end is notified. The insert trigger looks whether a worker sleeps.
GRANT INSERT (id, task_name, queue_name, is_async, priority, kwargs, enqueued_at, good_until, timeout_ms, max_retries,
              task_options, unique_key, tags, rate_key, cost)
   ON horsies_tasks, horsies_tasks_live TO horsies_producer;
GRANT INSERT (idempotency_key, task_id, enqueue_sha) ON horsies_idempotency_keys TO horsies_producer;
GRANT UPDATE (awaited) ON horsies_tasks_live TO horsies_producer;
GRANT SELECT ON horsies_tasks, horsies_tasks_live, horsies_task_attempts, horsies_task_definitions,
                horsies_idempotency_keys, horsies_progress, horsies_task_logs, horsies_steps, horsies_signals,
                horsies_schema_version
   TO horsies_producer;
GRANT SELECT (queues, waiting, waiting_async, lease_expires_at) ON horsies_workers TO horsies_producer;
GRANT EXECUTE ON FUNCTION horsies_send, horsies_lane, horsies_queue_channel, horsies_signal, horsies_debounce TO horsies_producer;
-- It starts workflows, through a function that checks them, waits for them and reads them. To steer one that runs takes an
-- operator.
GRANT EXECUTE ON FUNCTION horsies_start_workflow TO horsies_producer;
GRANT SELECT, UPDATE (awaited) ON horsies_workflows TO horsies_producer;
GRANT SELECT ON horsies_workflow_tasks, horsies_workflow_results TO horsies_producer;

-- A worker is a producer, for its tasks may send tasks. It moves tasks from state to state, and cannot change what they
-- are. A trigger keeps it from changing tasks that have ended: that takes a right on horsies_tasks_history.
GRANT horsies_producer TO horsies_worker;
GRANT UPDATE (live, status, claim_seq, retry_count, crash_count, enqueued_at, next_retry_at, claimed_by_worker_id,
              claimed_at, started_at, completed_at, failed_at, terminal_at, result, error_code, failed_reason,
              cancel_asked_at, unknown_since, unknown_until, rate_key)
   ON horsies_tasks TO horsies_worker, horsies_operator;
GRANT UPDATE (status, claim_seq, claimed_by_worker_id, claimed_at, started_at, worker_pid, worker_hostname,
              worker_process_name, enqueued_at, unknown_since, unknown_until)
   ON horsies_tasks_live TO horsies_worker;
-- It marks rows that cannot be moved to history.
GRANT UPDATE (result, error_code, failed_reason, failed_at, unique_key, follows, good_until) ON horsies_tasks_live TO horsies_worker;
GRANT SELECT, INSERT ON horsies_attempts TO horsies_worker;
GRANT SELECT ON horsies_suspensions TO horsies_worker;
GRANT SELECT, DELETE, INSERT (worker_id, hostname, pid, processes, queues, task_names, lease_expires_at),
      UPDATE (lease_expires_at, last_beat_at, dead_at, state, waiting, waiting_async)
   ON horsies_workers TO horsies_worker;
GRANT SELECT, INSERT, DELETE, UPDATE (tasks) ON horsies_in_flight TO horsies_worker;
-- It stores the progress and the log lines of its tasks, and deletes the first lines of a task that logs too many.
GRANT INSERT, UPDATE (claim_seq, done, total, message, at) ON horsies_progress TO horsies_worker;
GRANT INSERT, DELETE ON horsies_task_logs TO horsies_worker;
GRANT SELECT, INSERT, UPDATE (seconds, burst, spent_until, held_until) ON horsies_rates TO horsies_worker;
-- It counts the running tasks and the starts of each key.
GRANT SELECT, INSERT, DELETE, UPDATE (taken_at) ON horsies_key_slots TO horsies_worker;
GRANT SELECT, INSERT (rate_key, spent_until, waits_until, next_at), UPDATE (spent_until, waits_until, next_at), DELETE
   ON horsies_keys TO horsies_worker;
GRANT INSERT, UPDATE ON horsies_task_definitions TO horsies_worker;
GRANT INSERT ON horsies_worker_states, horsies_heartbeats TO horsies_worker;
-- It stores the steps of its tasks, parks tasks, and sends the tasks that they call.
GRANT INSERT, UPDATE ON horsies_steps TO horsies_worker;
GRANT UPDATE (parked_at, crash_count) ON horsies_tasks_live TO horsies_worker;
GRANT INSERT (parent_id, parent_step) ON horsies_tasks_live TO horsies_worker;
-- It deletes what is old through functions that spare the last hour, and actions of the last seven days.
GRANT SELECT ON horsies_tasks_history TO horsies_worker;
GRANT EXECUTE ON FUNCTION horsies_drop_history, horsies_delete_history, horsies_forget, horsies_prepare_history,
                          horsies_refresh_statistics, horsies_follow
   TO horsies_worker;
-- It counts what has ended.
GRANT SELECT, INSERT ON horsies_rollups, horsies_depths TO horsies_worker;
GRANT SELECT, INSERT, UPDATE ON horsies_totals TO horsies_worker;
GRANT EXECUTE ON FUNCTION horsies_summarize_history TO horsies_worker;
-- Whoever ends a task, a worker or an operator, moves its workflow on: sends the next tasks, turns the items of a map into a workflow, and stores a
-- workflow that was built for a node.
GRANT INSERT (workflow_id, workflow_index) ON horsies_tasks_live TO horsies_worker;
GRANT INSERT (id, root_workflow_id, parent_workflow_id, parent_task_index, depth, name, status, on_error, definition_key,
              output_task_index, success_policy, deadline_seconds, deadline_at, open_tasks, gathers, started_at),
      UPDATE (status, started_at, completed_at, deadline_at, open_tasks, result, error)
   ON horsies_workflows TO horsies_worker, horsies_operator;
GRANT INSERT (workflow_id, task_index, task_id, sub_workflow_id, good_until, seconds, min_success, timeout_ms, priority,
              max_retries, is_async, allow_failed_deps, due_at, started_at, open_deps, open_sources, status, kind,
              join_type, node_id, task_name, queue_name, rate_key, task_kwargs, task_options, sub_definition_key,
              args_from, dependencies, dependents, workflow_ctx_from),
      UPDATE (status, task_id, sub_workflow_id, due_at, started_at, completed_at, open_deps, completed_deps, failed_deps,
              open_sources, result, sub_workflow_summary)
   ON horsies_workflow_tasks TO horsies_worker, horsies_operator;
GRANT EXECUTE ON FUNCTION horsies_store_sub_workflow, horsies_store_workflow, horsies_workflow_fault
   TO horsies_worker, horsies_operator;

-- A scheduler sends, dates what it sends by its slot, and keeps the schedules, as do programs that make some at run time.
-- A worker with a scheduler in it needs both roles.
GRANT horsies_producer TO horsies_scheduler;
GRANT UPDATE (sent_at) ON horsies_tasks_live TO horsies_scheduler;
GRANT SELECT, INSERT, UPDATE, DELETE ON horsies_schedule_state TO horsies_scheduler;

-- A viewer reads everything, arguments and results too, and writes nothing.
GRANT SELECT ON horsies_tasks, horsies_tasks_live, horsies_tasks_history, horsies_attempts, horsies_task_attempts,
                horsies_workers, horsies_worker_states, horsies_heartbeats, horsies_in_flight, horsies_rates,
                horsies_keys, horsies_key_slots, horsies_task_definitions, horsies_idempotency_keys, horsies_schedule_state,
                horsies_suspensions, horsies_actions, horsies_workflows, horsies_workflow_tasks, horsies_workflow_results,
                horsies_progress, horsies_task_logs, horsies_steps, horsies_signals, horsies_event_cursors, horsies_rollups,
                horsies_totals, horsies_depths, horsies_schema_version
   TO horsies_viewer;

-- An operator suspends queues, cancels tasks, edits those that wait, sends them through once more, and deletes those that have
-- ended; creates, edits, pauses and deletes schedules. To send through what nobody else is about to, it locks the rows, which is an UPDATE right.
GRANT horsies_viewer TO horsies_operator;
GRANT UPDATE (earlier_attempts, good_until, parked_at, unique_key, follows) ON horsies_tasks TO horsies_operator;
GRANT UPDATE (kwargs, priority) ON horsies_tasks_live TO horsies_operator;
GRANT UPDATE (live) ON horsies_tasks_history TO horsies_operator;
GRANT INSERT ON horsies_attempts TO horsies_operator;
GRANT SELECT, INSERT (queue_name, suspended_by), DELETE ON horsies_suspensions TO horsies_operator;
GRANT INSERT (rate_key, paused_at, paused_by), UPDATE (paused_at, paused_by) ON horsies_keys TO horsies_operator;
GRANT INSERT (actor, action, subject, tasks) ON horsies_actions TO horsies_operator;
-- It sends events on, and keeps how far they have come.
GRANT INSERT, UPDATE ON horsies_event_cursors TO horsies_operator;
GRANT EXECUTE ON FUNCTION horsies_queue_channel, horsies_signal TO horsies_operator;
GRANT DELETE ON horsies_tasks_history, horsies_attempts, horsies_idempotency_keys, horsies_progress, horsies_task_logs,
                horsies_steps, horsies_signals
   TO horsies_operator;
GRANT INSERT, UPDATE, DELETE ON horsies_schedule_state TO horsies_operator;
-- And pauses, resumes, cancels, signals and repairs workflows, which may send tasks. To undo a cancel sends the tasks again, each
-- once.
GRANT INSERT (id, task_name, queue_name, is_async, priority, kwargs, enqueued_at, good_until, timeout_ms, max_retries,
              task_options, unique_key, tags, rate_key, cost, workflow_id, workflow_index)
   ON horsies_tasks_live TO horsies_operator;
GRANT INSERT (idempotency_key, task_id, enqueue_sha) ON horsies_idempotency_keys TO horsies_operator;
GRANT UPDATE (awaited) ON horsies_workflows TO horsies_operator;
GRANT EXECUTE ON FUNCTION horsies_start_workflow TO horsies_operator;
COMMIT;
