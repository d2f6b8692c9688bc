#include "src/launch/death_book.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <algorithm>

#include <fmt/format.h>

#include "src/exchange/control.h"

namespace lockstep::launch {
namespace {

// A peer that notices the failure needs about this long to end because of it.
constexpr double kConsequenceSeconds = 1.0;

const Death* first_fault(const std::vector<Death>& deaths) {
  const auto found =
      std::find_if(deaths.begin(), deaths.end(), [](const Death& death) { return death.is_fault; });
  return found == deaths.end() ? nullptr : &*found;
}

std::string last_lines(const Death& death) {
  if (death.last_stderr_lines.empty() || death.lines_are_on_screen) return "";
  std::string text = fmt::format("\nthe last lines of rank {} on standard error:", death.rank);
  for (const std::string& line : death.last_stderr_lines) text += "\n  | " + line;
  return text;
}

// What it said, without its rank.
std::vector<std::string> words_of(const Death& death) {
  std::vector<std::string> lines = death.last_stderr_lines;
  const std::string own = fmt::format("rank {}", death.rank);
  for (std::string& line : lines) {
    for (size_t at = line.find(own); at != std::string::npos; at = line.find(own, at)) {
      line.replace(at, own.size(), "rank");
    }
  }
  return lines;
}

// The same error on both, so that neither is the cause of the other.
bool are_alike(const Death& one, const Death& other) {
  return one.wait_status == other.wait_status && words_of(one) == words_of(other);
}

std::string list_ranks(const std::vector<uint32_t>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

}  // namespace

int shell_status(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string describe_wait_status(int wait_status) {
  if (!WIFSIGNALED(wait_status)) {
    return fmt::format("ended with exit status {}", WEXITSTATUS(wait_status));
  }
  const int signal = WTERMSIG(wait_status);
  return fmt::format("was killed by signal {} ({})", signal, ::strsignal(signal));
}

std::string describe_place(uint64_t step, uint32_t microbatch) {
  if (step == 0) return "";
  if (microbatch == UINT32_MAX) return fmt::format(" in step {}", step);
  return fmt::format(" in step {}, microbatch {}", step, microbatch);
}

bool DeathBook::is_consequence(const Ending& ending) const {
  if (is_ending()) return true;
  if (ending.cause == DeathCause::kDrill) return false;  // it happens when it was asked for
  return std::any_of(deaths_.begin(), deaths_.end(), [&](const Death& earlier) {
    if (earlier.is_consequence || ending.seconds - earlier.seconds > kConsequenceSeconds)
      return false;
    // An error about a peer is an exit, or, where nothing catches it, an abort.
    const int status = ending.wait_status;
    return status == earlier.wait_status || WIFEXITED(status) || WTERMSIG(status) == SIGABRT;
  });
}

const Death* DeathBook::add(Ending ending) {
  if (ending.wait_status == 0) {
    has_success_ = true;
    success_after_last_kill_ = success_after_last_kill_ || ending.is_registered;
    return nullptr;
  }
  Death death;
  death.is_consequence = is_consequence(ending);
  death.rank = ending.rank;
  death.incarnation = ending.incarnation;
  death.wait_status = ending.wait_status;
  death.step = ending.step;
  death.microbatch = ending.microbatch;
  death.is_fault = exchange::is_work_fault(ending.wait_status);
  death.is_registered = ending.is_registered;
  death.cause = ending.cause;
  death.seconds = ending.seconds;
  death.last_stderr_lines = std::move(ending.last_stderr_lines);
  death.lines_begin = ending.lines_begin;
  death.description =
      describe_wait_status(death.wait_status) + describe_place(death.step, death.microbatch);
  if (!ending.is_registered) death.description += " before it had joined the group";
  if (ending.is_out_of_memory && ending.cause == DeathCause::kOutside) {
    death.description +=
        " (not sent by lockstep; the kernel's out-of-memory killer does this: see dmesg, or "
        "oom_kill "
        "in the cgroup's memory.events)";
  }
  if (ending.cause == DeathCause::kRequested) {
    death.description += " by lockstep, because another replica had waited too long for it";
  }
  if (!death.is_fault) success_after_last_kill_ = false;
  deaths_.push_back(std::move(death));
  return &deaths_.back();
}

void DeathBook::end_run(int exit_status, std::string reason) {
  if (is_ending()) return;
  end_status_ = exit_status;
  reason_ = std::move(reason);
}

const Death* first_failure(const std::vector<Death>& deaths) {
  // A fault that stands for itself; else what came first: its consequences may all be faults.
  for (const Death& death : deaths) {
    if (death.is_fault && !death.is_consequence) return &death;
  }
  return deaths.empty() ? nullptr : &deaths.front();
}

int DeathBook::exit_status() const {
  if (end_status_) return *end_status_;
  const bool survived = deaths_.empty() ? has_success_ : success_after_last_kill_;
  const Death* fault = first_fault(deaths_);
  if (survived) return fault == nullptr ? 0 : shell_status(fault->wait_status);
  const Death* cause = first_failure(deaths_);
  return cause == nullptr ? 1 : shell_status(cause->wait_status);
}

LaunchResult DeathBook::result(double seconds) const {
  return {exit_status(), deaths_, reason_, seconds};
}

std::string failure_report(const LaunchResult& result) {
  if (result.exit_status == 0) return "";
  std::string report = result.reason;
  const Death* first = first_failure(result.deaths);
  if (first == nullptr || (!report.empty() && first->is_consequence)) return report;
  if (!report.empty()) report += "\n";
  report += fmt::format("rank {} failed first: it {}", first->rank, first->description);
  report += last_lines(*first);
  // Replicas survive the kill of another. Where one ended soon after, what it said may be the
  // cause.
  const Death* fault = first->is_fault ? first : first_fault(result.deaths);
  if (fault != nullptr && fault != first && fault->is_consequence) {
    report += fmt::format("\nrank {} followed: it {}", fault->rank, fault->description);
    report += last_lines(*fault);
  }
  std::vector<uint32_t> consequences;
  std::vector<uint32_t> alike;
  for (const Death& death : result.deaths) {
    if (&death == first || (&death == fault && death.is_consequence)) continue;
    if (death.is_consequence && death.cause == DeathCause::kItself && are_alike(death, *first)) {
      alike.push_back(death.rank);
    } else if (death.is_consequence) {
      consequences.push_back(death.rank);
    } else {
      report += fmt::format("\nrank {} failed as well: it {}", death.rank, death.description);
    }
  }
  std::sort(alike.begin(), alike.end());
  std::sort(consequences.begin(), consequences.end());
  if (!alike.empty()) report += fmt::format("\n{} ended in the same way", list_ranks(alike));
  if (!consequences.empty()) {
    report += fmt::format("\n{} ended as a consequence", list_ranks(consequences));
  }
  return report;
}

}  // namespace lockstep::launch
