-- A task is found by its key, whatever the planner believes: a plan is kept, and may have been made when there was little
-- in the table. The index for claims ends in the key, too. From PostgreSQL 18 on it can be searched for that alone, by
-- skipping from one enqueued_at to the next, which is a walk over everything, unless a bulk send has just been seen to
-- give the same one to all; in an empty table it seems to be as good as the key, or better if the queues were seen to lie
-- in order. So the planner is told that no two are alike, and nothing of the order. And of two indexes that seem to cost
-- the same the younger one is taken.
ALTER TABLE horsies_tasks_live
    ALTER COLUMN enqueued_at SET (n_distinct = -1),
    ALTER COLUMN queue_name SET STATISTICS 0;
ALTER TABLE horsies_tasks_live DROP CONSTRAINT horsies_tasks_live_pkey,
    ADD CONSTRAINT horsies_tasks_live_pkey PRIMARY KEY (id);
