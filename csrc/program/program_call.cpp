#include "program/program_call.h"

#include <utility>

namespace staticrt {
namespace {
thread_local ProgramWatcher* watching = nullptr;
}  // namespace

ProgramWatcher* program_watcher() {
  return watching;
}

ProgramWatcher* exchange_program_watcher(ProgramWatcher* watcher) {
  return std::exchange(watching, watcher);
}

}  // namespace staticrt
