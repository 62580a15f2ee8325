-- fragment: key_facts
-- The facts about some keys. The waiting tasks of a key are counted up to `most`.
SELECT left(substr(chosen.rate_key, 5), 300) AS key, running.tasks AS running, waiting.tasks AS waiting,
       waiting.oldest_seconds, state.paused_by, state.paused_at,
       CASE WHEN state.next_at > now() THEN extract(epoch FROM state.next_at)::double precision
                                            - extract(epoch FROM now())::double precision END AS allowed_in
  FROM chosen
  LEFT JOIN horsies_keys AS state ON state.rate_key = chosen.rate_key
 CROSS JOIN LATERAL (
       SELECT count(*)::integer AS tasks FROM horsies_key_slots AS slot
        WHERE slot.rate_key = chosen.rate_key AND {is_slot_taken}) AS running
 CROSS JOIN LATERAL (
       SELECT count(*)::integer AS tasks,
              extract(epoch FROM now())::double precision - extract(epoch FROM min(enqueued_at))::double precision AS oldest_seconds
         FROM (SELECT task.enqueued_at FROM lane
                CROSS JOIN LATERAL (
                      SELECT enqueued_at FROM horsies_tasks_live AS task
                       WHERE task.queue_name = lane.queue_name AND task.is_async = lane.is_async
                         AND task.rate_key = chosen.rate_key AND task.priority <> 0 AND task.parked_at IS NULL AND task.status = 'PENDING'
                         AND task.enqueued_at <= now() LIMIT %(most)s) AS task
                LIMIT %(most)s) AS due) AS waiting

-- fragment: lanes_of_keys
WITH RECURSIVE live (queue_name) AS (
    (SELECT queue_name FROM horsies_tasks_live WHERE priority <> 0 AND parked_at IS NULL ORDER BY queue_name LIMIT 1)
    UNION ALL
    SELECT (SELECT task.queue_name FROM horsies_tasks_live AS task
             WHERE task.queue_name > live.queue_name AND task.priority <> 0 AND task.parked_at IS NULL ORDER BY task.queue_name LIMIT 1)
      FROM live WHERE live.queue_name IS NOT NULL
), lane AS MATERIALIZED (
    SELECT live.queue_name, kind.is_async FROM live CROSS JOIN (VALUES (false), (true)) AS kind (is_async)
     WHERE live.queue_name IS NOT NULL
)

-- name: keys
-- List keys: those with most running tasks, those that have waited longest, and those that are paused. The statement reads at most
-- `read` rows of each kind, so its cost does not grow with the number of keys.
{lanes_of_keys}, chosen AS MATERIALIZED (
    SELECT rate_key FROM (SELECT rate_key FROM horsies_key_slots GROUP BY rate_key ORDER BY count(*) DESC LIMIT %(limit)s) AS busiest
    UNION
    SELECT rate_key FROM (
        SELECT rate_key, min(enqueued_at) AS since FROM (
            SELECT task.rate_key, task.enqueued_at FROM lane
             CROSS JOIN LATERAL (
                   SELECT rate_key, enqueued_at FROM horsies_tasks_live AS task
                    WHERE task.queue_name = lane.queue_name AND task.is_async = lane.is_async
                      AND task.rate_key >= 'key=' AND task.rate_key < 'key>' AND task.parked_at IS NULL AND task.enqueued_at <= now()
                      AND task.status = 'PENDING'
                    ORDER BY task.queue_name, task.is_async, task.enqueued_at LIMIT %(read)s) AS task) AS oldest
         GROUP BY rate_key ORDER BY since LIMIT %(limit)s) AS longest
    UNION
    SELECT rate_key FROM (SELECT rate_key FROM horsies_keys WHERE paused_at IS NOT NULL ORDER BY paused_at LIMIT %(limit)s) AS paused
)
{key_facts}
 WHERE running.tasks > 0 OR waiting.tasks > 0 OR state.paused_at IS NOT NULL
 ORDER BY CASE WHEN %(busiest)s THEN running.tasks END DESC, waiting.oldest_seconds DESC NULLS LAST, running.tasks DESC, 1
 LIMIT %(limit)s;

-- name: key
-- Return the facts about one key.
{lanes_of_keys}, chosen AS MATERIALIZED (SELECT 'key=' || %(key)s::text COLLATE "C" AS rate_key)
{key_facts};

-- name: totals
-- Sum up all keys in four numbers. The oldest waiting task of each queue and kind is the first one of the index of tasks with keys.
{lanes_of_keys}
SELECT (SELECT count(DISTINCT rate_key) FROM horsies_key_slots AS slot WHERE {is_slot_taken})::integer AS keys_running,
       (SELECT count(*) FROM horsies_key_slots AS slot WHERE {is_slot_taken})::integer AS tasks_running,
       (SELECT count(*) FROM horsies_keys WHERE paused_at IS NOT NULL)::integer AS keys_paused,
       (SELECT extract(epoch FROM now())::double precision - extract(epoch FROM min(oldest.enqueued_at))::double precision
          FROM lane
         CROSS JOIN LATERAL (
               SELECT enqueued_at FROM horsies_tasks_live AS task
                WHERE task.queue_name = lane.queue_name AND task.is_async = lane.is_async
                  AND task.rate_key >= 'key=' AND task.rate_key < 'key>' AND task.parked_at IS NULL
                  AND task.enqueued_at <= now() AND task.status = 'PENDING'
                ORDER BY task.queue_name, task.is_async, task.enqueued_at LIMIT 1) AS oldest) AS oldest_seconds;
