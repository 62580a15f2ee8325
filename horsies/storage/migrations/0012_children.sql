-- The processes in which a worker runs tasks, at work or not: the pid of each, what it holds, and since when it is there.
ALTER TABLE horsies_worker_states ADD COLUMN children jsonb NOT NULL DEFAULT '[]';
