#include "src/launch/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/number.h"
#include "src/launch/pipe.h"

namespace lockstep::launch {
namespace {

using exchange::Descriptor;

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& string : strings) result.push_back(const_cast<char*>(string.c_str()));
  result.push_back(nullptr);
  return result;
}

struct Execution {
  char** arguments;
  char** environment;
  pid_t launcher;
  int error_fd;
  sigset_t signal_mask;
  const std::vector<unsigned long>& cpu_mask;  // as the kernel takes it; empty: none
};

std::vector<unsigned long> mask_of(const std::vector<uint32_t>& cpus) {
  constexpr uint32_t kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask;
  for (const uint32_t cpu : cpus) {
    mask.resize(std::max<size_t>(mask.size(), cpu / kBits + 1));
    mask[cpu / kBits] |= 1ul << (cpu % kBits);
  }
  return mask;
}

void keep_open_after_exec(int fd) { ::fcntl(fd, F_SETFD, 0); }

// In the child. Only calls that are safe after the fork of a process with threads.
[[noreturn]] void execute(const SpawnRequest& request, const Execution& execution) {
  request.signals.restore();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != execution.launcher) ::_exit(128 + SIGHUP);  // it died before the line above
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null >= 0) ::dup2(null, STDIN_FILENO);
  ::dup2(request.stdout_fd, STDOUT_FILENO);
  ::dup2(request.stderr_fd, STDERR_FILENO);
  for (const int fd : request.inherited_fds) keep_open_after_exec(fd);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = request.open_file_limit;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  // Where the CPUs have gone meanwhile the child stays unbound: that costs time and no bits.
  const auto& mask = execution.cpu_mask;
  if (!mask.empty()) {
    ::syscall(SYS_sched_setaffinity, 0, mask.size() * sizeof mask[0], mask.data());
  }
  ::sigprocmask(SIG_SETMASK, &execution.signal_mask, nullptr);
  ::execvpe(execution.arguments[0], execution.arguments, execution.environment);
  const int error = errno;
  if (::write(execution.error_fd, &error, sizeof error) < 0) ::_exit(126);
  ::_exit(error == ENOENT ? 127 : 126);
}

std::optional<std::string> read_small_file(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char text[4096];
  const ssize_t size = file ? ::read(file.get(), text, sizeof text) : -1;
  if (size < 0) return std::nullopt;
  return std::string(text, static_cast<size_t>(size));
}

// The kernel's record of a process that others have reaped (Linux 6.15).
struct PidfdInfo {
  uint64_t mask;
  uint64_t cgroup;
  uint32_t ids[11];
  int32_t wait_status;
};
constexpr uint64_t kInfoExit = 8;

std::optional<int> wait_status_from_pidfd(const Descriptor& pidfd) {
  PidfdInfo info{};
  info.mask = kInfoExit;
  if (::ioctl(pidfd.get(), _IOWR(0xFF, 11, PidfdInfo), &info) != 0) return std::nullopt;
  if ((info.mask & kInfoExit) == 0) return std::nullopt;
  return info.wait_status;
}

int wait_status_of(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return (info.si_status & 0xff) << 8;
  return info.si_status | (info.si_code == CLD_DUMPED ? 0x80 : 0);
}

std::map<pid_t, pid_t> all_parents() {
  std::map<pid_t, pid_t> parents;  // [pid]
  DIR* directory = ::opendir("/proc");
  if (directory == nullptr) return parents;
  while (const dirent* entry = ::readdir(directory)) {
    const auto pid = base::number_from<pid_t>(entry->d_name);
    if (!pid) continue;
    if (const auto status = process_status(*pid)) parents[*pid] = status->parent;
  }
  ::closedir(directory);
  return parents;
}

}  // namespace

SpawnedProcess spawn(const SpawnRequest& request) {
  auto arguments = pointers(request.command);
  auto environment = pointers(request.environment);
  Pipe exec_error = make_pipe();
  SpawnedProcess process;
  process.exec_error = std::move(exec_error.read_end);
  const auto cpu_mask = mask_of(request.cpus);
  Execution execution{
      arguments.data(), environment.data(), ::getpid(), exec_error.write_end.get(), {}, cpu_mask};
  sigset_t all;
  ::sigfillset(&all);
  // No handler may run in the child: it would write to the pipe that it shares with us.
  ::pthread_sigmask(SIG_SETMASK, &all, &execution.signal_mask);
  process.pid = ::fork();
  const int error = errno;
  if (process.pid == 0) execute(request, execution);
  ::pthread_sigmask(SIG_SETMASK, &execution.signal_mask, nullptr);
  if (process.pid < 0) {
    throw Error(ErrorCode::kEnvironment,
                fmt::format("cannot start another process (a limit? see `ulimit -u`, pids.max): {}",
                            std::strerror(error)));
  }
  process.pidfd = open_pidfd(process.pid);
  if (!process.pidfd) {
    const int reason = errno;
    ::kill(process.pid, SIGKILL);
    ::waitpid(process.pid, nullptr, 0);
    if (reason == EMFILE || reason == ENFILE) throw_no_descriptor("a process descriptor", reason);
    throw Error(ErrorCode::kEnvironment,
                fmt::format("cannot watch a process (pidfd_open, Linux 5.4 or "
                            "newer is needed): {}",
                            std::strerror(reason)));
  }
  return process;
}

std::optional<ProcessStatus> process_status(pid_t pid) {
  const auto text = read_small_file(fmt::format("/proc/{}/stat", pid));
  if (!text) return std::nullopt;
  // The name, in parentheses, may hold anything: the fields start behind its last parenthesis.
  const size_t name_end = text->rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text->size()) return std::nullopt;
  ProcessStatus status;
  status.state = (*text)[name_end + 2];
  status.parent = static_cast<pid_t>(std::strtol(text->c_str() + name_end + 3, nullptr, 10));
  status.wait_status =
      static_cast<int>(std::strtol(text->c_str() + text->rfind(' ') + 1, nullptr, 10));
  return status;
}

bool is_descendant(pid_t pid, pid_t ancestor) {
  for (int depth = 0; depth < 1000 && pid > 1; ++depth) {
    const auto status = process_status(pid);
    if (!status) return false;
    if (status->parent == ancestor) return true;
    pid = status->parent;
  }
  return false;
}

std::vector<pid_t> descendants(pid_t ancestor, const std::set<pid_t>& except) {
  const auto parents = all_parents();
  std::vector<pid_t> found;
  for (const auto& entry : parents) {
    pid_t pid = entry.first;
    // Up to the ancestor; bounded, since the picture was not taken at one moment.
    for (int depth = 0; depth < 1000; ++depth) {
      const auto parent = parents.find(pid);
      if (except.contains(pid) || parent == parents.end()) break;
      if (parent->second == ancestor) {
        found.push_back(entry.first);
        break;
      }
      pid = parent->second;
    }
  }
  return found;
}

Descriptor open_pidfd(pid_t pid) {
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

void send_signal(const Descriptor& pidfd, int signal) {
  if (pidfd) ::syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0);
}

std::optional<int> take_wait_status(const Descriptor& pidfd, pid_t pid) {
  siginfo_t info{};
  const auto id = static_cast<id_t>(pidfd.get());
  constexpr auto kPidfdType = static_cast<idtype_t>(3);  // P_PIDFD
  if (::waitid(kPidfdType, id, &info, WEXITED | WNOHANG) == 0 && info.si_pid != 0) {
    return wait_status_of(info);
  }
  if (const auto status = process_status(pid); status && status->state == 'Z') {
    return status->wait_status;
  }
  return wait_status_from_pidfd(pidfd);
}

std::vector<pid_t> end_descendants(const std::set<pid_t>& except) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (true) {
    auto left = descendants(::getpid(), except);
    if (left.empty() || std::chrono::steady_clock::now() > end) return left;
    for (const pid_t pid : left) {
      const Descriptor pidfd = open_pidfd(pid);
      // Looked at again now that the number is held: it may have been given away before.
      if (pidfd && is_descendant(pid, ::getpid())) send_signal(pidfd, SIGKILL);
    }
    for (const pid_t pid : left) ::waitpid(pid, nullptr, WNOHANG);
    ::poll(nullptr, 0, 2);
  }
}

void reap_orphans(const std::set<pid_t>& except) {
  for (int i = 0; i < 1000; ++i) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    if (except.contains(info.si_pid)) return;
    ::waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

}  // namespace lockstep::launch
