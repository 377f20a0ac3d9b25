-- RESIZE KEYS trainer newest_generation
--        ARGV REQUEST leader size, or CONFIRM size generation released incarnation,
--        or RELEASE leader generation silence_ms, or END leader generation how
-- Asks the trainer for another size, takes its confirmation, or ends a request; answers the record.
-- RELEASE answers it only while what the trainer has left may be terminated, else nothing.
-- A leader older than the newest that claimed anything changes nothing, and a confirmation of
-- another request or size, or by another trainer than the one that reports, neither. A trainer that
-- has left nodes runs on the smaller size.
-- `queue/src/control/resize.rs` states the same rules.
register_control('control_resize', 'finishes', function(keys, arguments)
  local verb = arguments[1]

  local function text(name) return call('HGET', keys[1], name) or '' end

  local function number(name) return tonumber(call('HGET', keys[1], name) or '0') end

  local function set(name, value) call('HSET', keys[1], name, string.format('%.0f', value)) end

  local function forget(...) call('HDEL', keys[1], ...) end

  local function stands(generation)
    return text('resize_size') ~= '' and number('resize_generation') == generation
  end

  local function request(size)
    if size < 1 or number('resize_size') == size then return end
    forget('resize_released', 'resize_confirmed_by', 'resize_end', 'resize_ended_at')
    set('resize_size', size)
    set('resize_generation', number('resize_generation') + 1)
    set('resize_requested_at', server_time())
  end

  local function confirm(size, generation, released, incarnation)
    local is_asked = stands(generation) and number('resize_size') == size
    local is_heard = text('incarnation') == incarnation and (released == '' or incarnation ~= '')
    if not is_asked or not is_heard or number('confirmed_generation') >= generation then return end
    set('confirmed_generation', generation)
    set('heartbeat', server_time())
    if incarnation ~= '' then call('HSET', keys[1], 'resize_confirmed_by', incarnation) end
    if released ~= '' then
      call('HSET', keys[1], 'resize_released', released)
      set('size', size)
    end
  end

  local function may_release(generation, silence_ms)
    local size, said_by = number('size'), text('resize_confirmed_by')
    return stands(generation) and number('confirmed_generation') >= generation
      and text('resize_released') ~= '' and size > 0 and size <= number('resize_size')
      and said_by ~= '' and said_by == text('incarnation')
      and server_time() - number('heartbeat') <= silence_ms
  end

  local function finish(generation, how)
    if not stands(generation) then return end
    forget('resize_size', 'resize_requested_at', 'resize_released')
    call('HSET', keys[1], 'resize_end', how)
    set('resize_ended_at', server_time())
  end

  local second, third = arguments[2], tonumber(arguments[3])
  if verb == 'CONFIRM' then
    confirm(tonumber(second), third, arguments[4], arguments[5])
  elseif is_outdated(keys[2], second) then
    if verb == 'RELEASE' then return {} end
  elseif verb == 'REQUEST' then
    request(third)
  elseif verb == 'RELEASE' then
    if not may_release(third, tonumber(arguments[4])) then return {} end
  else
    finish(third, arguments[4])
  end
  return call('HGETALL', keys[1])
end)
