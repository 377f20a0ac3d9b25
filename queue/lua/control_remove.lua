-- REMOVE KEYS record index; ARGV member
redis.call('SREM', KEYS[2], ARGV[1])
return redis.call('DEL', KEYS[1])
