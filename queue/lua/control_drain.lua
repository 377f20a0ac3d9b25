-- DRAIN KEYS record index newest_generation
--       ARGV REQUEST replica request_id generation reason remaining_ms lost
--         or REPORT replica request_id generation state
-- Merges a request or a report into a replica's drain; answers the record that now holds. A leader
-- older than the newest that claimed anything changes nothing, and its request is not answered with
-- what others asked for; agents and operators write as 0.
-- Only a leader ends what is terminating: the pods are gone, and the nodes return to work.
-- `queue/src/control/drains.rs` states the same rules.

local RANK = { requested = 1, draining = 2, drained = 3, terminating = 4, cancelled = 5 }

register_control('control_drain', 'finishes', function(keys, arguments)
  local verb, replica, request_id = arguments[1], arguments[2], arguments[3]
  local generation = tonumber(arguments[4])
  local now = server_time()

  local function field(name) return call('HGET', keys[1], name) end

  local function set(name, value)
    if type(value) == 'number' then value = string.format('%.0f', value) end
    call('HSET', keys[1], name, value)
  end

  -- Names with commas between them, each once, sorted.
  local function union(names, more)
    local known, all = {}, {}
    for name in string.gmatch(names .. ',' .. more, '[^,]+') do
      if not known[name] then all[#all + 1] = name end
      known[name] = true
    end
    table.sort(all)
    return table.concat(all, ',')
  end

  local function request(reason, remaining, lost)
    local state, deadline = field('state'), now + remaining
    local stands = state and state ~= 'cancelled'
    -- A rehearsal ends by itself, and would take with it what joins it.
    local gives_way = stands and field('reason') == 'drill' and reason ~= 'drill'
    if stands and not gives_way then
      set('deadline', math.min(tonumber(field('deadline')), deadline))
      set('generation', math.max(tonumber(field('generation')), generation))
      if reason == 'notice' then set('reason', reason) end
      lost = union(field('lost') or '', lost)
      if lost ~= '' then set('lost', lost) end
    elseif stands or not state or field('request_id') ~= request_id then
      call('DEL', keys[1])
      call('HSET', keys[1], 'replica', replica, 'request_id', request_id,
        'reason', reason, 'state', 'requested')
      set('generation', generation)
      set('deadline', deadline)
      set('requested_at', now)
      if lost ~= '' then set('lost', lost) end
      call('SADD', keys[2], replica)
    end
  end

  local function report(to)
    local from = field('state')
    local is_outdated = generation ~= 0 and generation < tonumber(field('generation') or '0')
    if not from or field('request_id') ~= request_id or is_outdated then return end
    local is_ended = to == 'cancelled' and generation ~= 0
    local is_settled = from == 'cancelled' or (from == 'terminating' and not is_ended)
    if is_settled or (to ~= 'cancelled' and RANK[to] <= RANK[from]) then return end
    set('state', to)
    set('generation', math.max(tonumber(field('generation')), generation))
  end

  local is_request = verb == 'REQUEST'
  if is_outdated(keys[3], generation) then return is_request and {} or call('HGETALL', keys[1]) end
  if is_request then
    request(arguments[5], tonumber(arguments[6]), arguments[7] or '')
  else
    report(arguments[5])
  end
  return call('HGETALL', keys[1])
end)
