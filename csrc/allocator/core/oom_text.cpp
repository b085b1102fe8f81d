// The out-of-memory message (G10).
#include "allocator/core/core.h"
#include "allocator/core/format.h"
#include "common/error.h"

namespace staticrt::alloc {

// The same state and request give the same text.
std::string Core::oom_text(const Want& want, const Status& reason, const ReclaimLog& log) {
  Bytes free = 0;
  Bytes total = info.total_bytes;
  (void)driver.memory_info(&free, &total).ok();
  std::vector<ProcessUse> processes;
  const bool processes_known = driver.processes(&processes).ok();

  Bytes cached = 0;
  std::string idle;
  std::string sleeper;
  const Lock lock(*this);
  std::map<PoolIndex, Bytes> free_by_pool;
  for (const BlockId id : collect_free([](const Block&) { return true; }))
    free_by_pool[blocks[id].pool] += blocks[id].size;
  for (const auto& [index, bytes] : free_by_pool) {
    const Pool& pool = pools[index];
    if (index == 0) {
      cached = bytes;
      continue;
    }
    idle += detail::concat(", ", format_bytes(bytes), " idle in pool ", pool.id,
                           pool.captured                       ? " (captured)"
                           : pool.state == PoolState::draining ? " (draining)"
                                                               : "");
    if (pool.captured && pool.index != want.pool && sleeper.empty()) sleeper = pool.id.key();
  }
  ledger.fold();
  const auto active = static_cast<Bytes>(ledger.all().now(Gauge::active_bytes));
  const auto live = static_cast<Bytes>(ledger.all().now(Gauge::allocated_bytes));

  std::string family = info.name.substr(0, info.name.find(':'));
  for (char& letter : family) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  std::string text =
      detail::concat(family, " out of memory. Tried to allocate ", format_bytes(want.requested), " on ",
                     info.name, ", stream ", want.stream, ", ",
                     want.pool == 0 ? std::string("default pool") : "pool " + pools[want.pool].id.key(), ".");
  if (want.address != kNullAddr)
    text += detail::concat(" It was asked for at address ", want.address, ", which is not free.");
  text += detail::concat("\n  device: ", format_bytes(total), " total, ", format_bytes(free), " free; limit ",
                         budget.limited() ? format_bytes(budget.limit()) : std::string("none"),
                         "; other processes: ");
  if (!processes_known) {
    text += "unknown";
  } else if (processes.empty()) {
    text += "none";
  }
  for (size_t i = 0; i < processes.size(); ++i)
    text += detail::concat(i == 0 ? "" : ", ", "pid ", processes[i].pid, " ",
                           format_bytes(processes[i].used_bytes));
  text +=
      detail::concat("\n  ours:   ", format_bytes(live), " live, ", format_bytes(cached), " cached", idle);
  if (active > live) text += detail::concat(", ", format_bytes(active - live), " waiting for other streams");
  if (arena_bytes != 0) text += detail::concat(", ", format_bytes(arena_bytes), " in plan arenas");
  text += log.steps.empty() ? "" : "\n  tried:  ";
  for (size_t i = 0; i < log.steps.size(); ++i)
    text += detail::concat(i == 0 ? "" : ", ", log.steps[i].first, " ", log.steps[i].second);
  text += "\n  fix:    ";
  if (!sleeper.empty()) {
    text += detail::concat("hibernate pool ", sleeper, " between replays, or lower the batch size");
  } else if (reason.text() == "limit") {
    text += "raise the limit, or lower the batch size";
  } else {
    text += "lower the batch size, or end other processes on the device";
  }
  return text;
}

}  // namespace staticrt::alloc
