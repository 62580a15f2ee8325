-- name: of_host
-- The workers of a host, the one that beat last first.
SELECT worker_id::text, pid,
       CASE WHEN dead_at IS NOT NULL OR lease_expires_at < now() THEN 'dead' ELSE state END,
       extract(epoch FROM now() - last_beat_at)::double precision
  FROM horsies_workers
 WHERE hostname = %(hostname)s
 ORDER BY last_beat_at DESC;
