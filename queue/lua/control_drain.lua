-- DRAIN KEYS record index newest_generation
--       ARGV REQUEST replica request_id generation reason remaining_ms
--         or REPORT replica request_id generation state
-- Merges a request or a report into a replica's drain; answers the record that now holds. A leader
-- older than the newest that claimed anything changes nothing; agents and operators write as 0.
-- `queue/src/control/drains.rs` states the same rules.
local verb, replica, request_id, generation = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local rank = { requested = 1, draining = 2, drained = 3, terminating = 4, cancelled = 5 }

local function field(name) return redis.call('HGET', KEYS[1], name) end

local function set(name, value)
  if type(value) == 'number' then value = string.format('%.0f', value) end
  redis.call('HSET', KEYS[1], name, value)
end

local function request(reason, remaining)
  local state, deadline = field('state'), now + remaining
  if state and state ~= 'cancelled' then
    set('deadline', math.min(tonumber(field('deadline')), deadline))
    set('generation', math.max(tonumber(field('generation')), generation))
    if reason == 'notice' then set('reason', reason) end
  elseif not state or field('request_id') ~= request_id then
    redis.call('HSET', KEYS[1], 'replica', replica, 'request_id', request_id,
      'reason', reason, 'state', 'requested')
    set('generation', generation)
    set('deadline', deadline)
    set('requested_at', now)
    redis.call('SADD', KEYS[2], replica)
  end
end

local function report(to)
  local from = field('state')
  local is_outdated = generation ~= 0 and generation < tonumber(field('generation') or '0')
  if not from or field('request_id') ~= request_id or is_outdated then return end
  local is_settled = from == 'cancelled' or from == 'terminating'
  if is_settled or (to ~= 'cancelled' and rank[to] <= rank[from]) then return end
  set('state', to)
  set('generation', math.max(tonumber(field('generation')), generation))
end

local newest = tonumber(redis.call('GET', KEYS[3]) or '0')
if generation ~= 0 and generation < newest then return redis.call('HGETALL', KEYS[1]) end
if verb == 'REQUEST' then request(ARGV[5], tonumber(ARGV[6])) else report(ARGV[5]) end
return redis.call('HGETALL', KEYS[1])
