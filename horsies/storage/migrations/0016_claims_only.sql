-- The index for claims is for statements that say `priority <> 0`, which is true of every task, and for no other. It ends
-- in the key, and in a table that is nearly empty and full of dead rows, as beside an old snapshot, the planner takes it
-- for as good a way to a task by its key, and walks all that is dead. (Not `> 0`: a claim would begin there, and not after
-- the last one.)
DROP INDEX horsies_tasks_live_claim;
CREATE INDEX horsies_tasks_live_claim
    ON horsies_tasks_live (queue_name, is_async, rate_key, priority, enqueued_at, id) WHERE priority <> 0;
