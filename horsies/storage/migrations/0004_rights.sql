-- What acts with its owner's rights is not for everybody, makes a year of partitions at most, and names the catalog's
-- functions as such: one that somebody put into this schema, and that takes exactly what is passed, would be called
-- before the catalog's.
CREATE OR REPLACE FUNCTION horsies_prepare_history(days integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '100ms' AS $$
DECLARE
    today date := (pg_catalog.now() AT TIME ZONE 'UTC')::date;
    part text;
    lower_end timestamptz;
    upper_end timestamptz;
    made integer := 0;
BEGIN
    IF NOT pg_catalog.pg_try_advisory_xact_lock(7240118055) THEN
        RETURN 0;  -- somebody else is at it
    END IF;
    FOR offset_days IN 0 .. least(days, 366) LOOP
        part := 'horsies_tasks_' || pg_catalog.to_char(today + offset_days, 'YYYYMMDD');
        lower_end := (today + offset_days)::timestamp AT TIME ZONE 'UTC';
        upper_end := (today + offset_days + 1)::timestamp AT TIME ZONE 'UTC';
        CONTINUE WHEN pg_catalog.to_regclass(part) IS NOT NULL
            OR EXISTS (SELECT FROM horsies_tasks_history_default
                        WHERE terminal_at >= lower_end AND terminal_at < upper_end);
        EXECUTE pg_catalog.format(
            'CREATE TABLE %I (LIKE horsies_tasks_history INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', part);
        EXECUTE pg_catalog.format('ALTER TABLE %I ADD CONSTRAINT %I PRIMARY KEY (id)', part, part || '_pkey');
        EXECUTE pg_catalog.format('ALTER TABLE horsies_tasks_history ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                                  part, lower_end, upper_end);
        made := made + 1;
    END LOOP;
    RETURN made;
EXCEPTION WHEN lock_not_available THEN
    RETURN 0;
END $$;
REVOKE EXECUTE ON FUNCTION horsies_prepare_history FROM PUBLIC;
