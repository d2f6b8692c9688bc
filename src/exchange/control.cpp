#include "src/exchange/control.h"

#include <sys/wait.h>

#include <csignal>

namespace lockstep::exchange {

bool is_work_fault(int wait_status) {
  if (WIFEXITED(wait_status)) return WEXITSTATUS(wait_status) != 0;
  if (!WIFSIGNALED(wait_status)) return false;
  switch (WTERMSIG(wait_status)) {
    case SIGABRT:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGSEGV:
    case SIGSYS:
    case SIGTRAP:  // __builtin_trap() where it is not SIGILL
      return true;
    default: return false;
  }
}

bool push_report(ControlBlock& control, uint32_t rank, const StepReport& report) {
  ReportRing& ring = control.rings[rank];
  const uint64_t written = ring.written.load(std::memory_order_relaxed);
  if (written - ring.read.load(std::memory_order_acquire) >= ReportRing::kCapacity) return false;
  ring.reports[written % ReportRing::kCapacity] = report;
  ring.written.store(written + 1, std::memory_order_release);
  return true;
}

bool pop_report(ControlBlock& control, uint32_t rank, StepReport& report) {
  ReportRing& ring = control.rings[rank];
  const uint64_t read = ring.read.load(std::memory_order_relaxed);
  if (read == ring.written.load(std::memory_order_acquire)) return false;
  report = ring.reports[read % ReportRing::kCapacity];
  ring.read.store(read + 1, std::memory_order_release);
  return true;
}

}  // namespace lockstep::exchange
