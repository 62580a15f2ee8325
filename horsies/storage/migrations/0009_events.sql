-- Events are read from the rows themselves: each row says when it was sent, started and ended. What had no time of its own
-- so far gets one here.

-- How far each sink of events has been served: everything up to `position` has been accepted by it.
CREATE TABLE horsies_event_cursors (
    sink       text        PRIMARY KEY,
    position   timestamptz NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- When a workflow was last paused and last went on; by a trigger, for a workflow may be paused by its own failure, too.
ALTER TABLE horsies_workflows ADD COLUMN paused_at timestamptz, ADD COLUMN resumed_at timestamptz;
CREATE FUNCTION horsies_note_pause() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF NEW.status = 'PAUSED' THEN
        NEW.paused_at := now();
    ELSIF NEW.status IN ('PENDING', 'RUNNING') THEN
        NEW.resumed_at := now();
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER horsies_workflows_paused BEFORE UPDATE OF status ON horsies_workflows FOR EACH ROW
    WHEN (NEW.status <> OLD.status AND (NEW.status = 'PAUSED' OR OLD.status = 'PAUSED'))
    EXECUTE FUNCTION horsies_note_pause();
CREATE INDEX horsies_workflows_started ON horsies_workflows (started_at) WHERE started_at IS NOT NULL;
CREATE INDEX horsies_workflows_paused ON horsies_workflows (paused_at) WHERE paused_at IS NOT NULL;
CREATE INDEX horsies_workflows_resumed ON horsies_workflows (resumed_at) WHERE resumed_at IS NOT NULL;

-- When a schedule last fired; `last_run_at` is the slot, which may have been long before.
ALTER TABLE horsies_schedule_state ADD COLUMN fired_at timestamptz;
CREATE FUNCTION horsies_note_fired() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    NEW.fired_at := now();
    RETURN NEW;
END $$;
CREATE TRIGGER horsies_schedule_state_fired BEFORE UPDATE OF run_count ON horsies_schedule_state FOR EACH ROW
    WHEN (NEW.run_count > OLD.run_count)
    EXECUTE FUNCTION horsies_note_fired();

-- Failed tasks that were sent through once more, by when.
CREATE INDEX horsies_attempts_requeued ON horsies_attempts (requeued_at) WHERE requeued_at IS NOT NULL;
