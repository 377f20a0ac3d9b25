-- SCAN cursor
-- Answers {cursor, units} for audits; a unit is {id, state, tokens, holder, token, attempts,
-- infra, hand_backs, is_sealed}.
local reply = redis.call('HSCAN', UNITS, ARGV[1], 'COUNT', 500)
local units = {}
for index = 1, #reply[2], 2 do
  local unit, record = reply[2][index], cmsgpack.unpack(reply[2][index + 1])
  local group = read(GROUPS, group_of(unit))
  units[#units + 1] = { unit, record[STATE], record[TOKENS], record[HOLDER], record[TOKEN],
    record[ATTEMPTS], record[INFRA], record[HAND_BACKS], group and group[SEALED] or 0 }
end
return { reply[1], units }
