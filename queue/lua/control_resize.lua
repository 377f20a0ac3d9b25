-- RESIZE KEYS trainer newest_generation
--        ARGV REQUEST leader size, or CONFIRM size generation released, or END leader generation
-- Asks the trainer for another size, takes its confirmation, or ends a request; answers the record.
-- A leader older than the newest that claimed anything changes nothing, and a confirmation of
-- another request or size neither. A trainer that has left nodes runs on the smaller size.
-- `queue/src/control/resize.rs` states the same rules.
register_control('control_resize', 'finishes', function(keys, arguments)
  local verb = arguments[1]

  local function number(name) return tonumber(call('HGET', keys[1], name) or '0') end

  local function set(name, value) call('HSET', keys[1], name, string.format('%.0f', value)) end

  local function request(size)
    if number('resize_size') == size then return end
    call('HDEL', keys[1], 'resize_released')
    set('resize_size', size)
    set('resize_generation', number('resize_generation') + 1)
    set('resize_requested_at', server_time())
  end

  local function confirm(size, generation, released)
    local is_asked =
      number('resize_size') == size and number('resize_generation') == generation
    if not is_asked or number('confirmed_generation') >= generation then return end
    set('confirmed_generation', generation)
    set('heartbeat', server_time())
    if released ~= '' then
      call('HSET', keys[1], 'resize_released', released)
      set('size', size)
    end
  end

  if verb == 'CONFIRM' then
    confirm(tonumber(arguments[2]), tonumber(arguments[3]), arguments[4])
    return call('HGETALL', keys[1])
  end
  if is_outdated(keys[2], arguments[2]) then return call('HGETALL', keys[1]) end
  if verb == 'REQUEST' then
    request(tonumber(arguments[3]))
  elseif number('resize_generation') == tonumber(arguments[3]) then
    call('HDEL', keys[1], 'resize_size', 'resize_requested_at', 'resize_released')
  end
  return call('HGETALL', keys[1])
end)
