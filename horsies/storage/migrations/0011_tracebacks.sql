-- Where each attempt failed: the task's own row has it of the last one only.
ALTER TABLE horsies_attempts ADD COLUMN traceback text;
CREATE OR REPLACE VIEW horsies_task_attempts AS
SELECT task_id, attempt, outcome, requeued_at IS NULL AS will_retry, started_at, finished_at, error_code, error_message,
       failed_reason, worker_id, worker_hostname, worker_pid, worker_process_name, traceback
  FROM horsies_attempts
UNION ALL
SELECT id, earlier_attempts + retry_count + 1, CASE status WHEN 'COMPLETED' THEN 'COMPLETED' ELSE 'FAILED' END, false,
       started_at, terminal_at, error_code, result::json -> 'err' ->> 'message',
       failed_reason, claimed_by_worker_id, worker_hostname, worker_pid, worker_process_name,
       result::json -> 'err' -> 'exception' ->> 'traceback'
  FROM horsies_tasks
 WHERE NOT live AND started_at IS NOT NULL AND status IN ('COMPLETED', 'FAILED', 'CANCELLED');
