#include "src/launch/sweeper.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <random>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/launch/pipe.h"

// The sweeper is a fork of a process that may have threads, and is never executed anew: until its
// end it may only use system calls and memory that it has already. No allocation, no stdio.

namespace lockstep::launch {
namespace {

constexpr size_t kTokenMax = 64;

void pause_ms(int milliseconds) { ::poll(nullptr, 0, milliseconds); }

void close_all_from(unsigned first) {
#ifdef SYS_close_range
  if (::syscall(SYS_close_range, first, ~0U, 0) == 0) return;
#endif
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  for (rlim_t fd = first; fd < limit.rlim_cur; ++fd) ::close(static_cast<int>(fd));
}

bool environment_has(int proc, const char* pid, const char* token) {
  constexpr char kName[] = "/environ";
  char path[64];
  const size_t length = ::strnlen(pid, 32);
  std::memcpy(path, pid, length);
  std::memcpy(path + length, kName, sizeof kName);
  const int file = ::openat(proc, path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const size_t token_size = std::strlen(token);
  char text[8192];
  size_t kept = 0;  // the end of the last piece, where a token may begin
  bool found = false;
  while (!found) {
    const ssize_t size = ::read(file, text + kept, sizeof text - kept);
    if (size <= 0) break;
    const size_t total = kept + static_cast<size_t>(size);
    found = ::memmem(text, total, token, token_size) != nullptr;
    kept = total < token_size ? total : token_size - 1;
    std::memmove(text, text + total - kept, kept);
  }
  ::close(file);
  return found;
}

bool is_number(const char* name) { return *name >= '1' && *name <= '9'; }

pid_t number_in(const char* name) {
  pid_t pid = 0;
  for (; *name >= '0' && *name <= '9'; ++name) pid = pid * 10 + (*name - '0');
  return pid;
}

// The layout of getdents64's records.
struct Record {
  uint64_t inode;
  int64_t offset;
  unsigned short size;
  unsigned char type;
  char name[1];
};

void kill_if_marked(int proc, const char* name, const char* token, int* killed) {
  if (!is_number(name)) return;
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, number_in(name), 0));
  if (pidfd < 0) return;
  if (environment_has(proc, name, token)) {
    ::syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0);
    ++*killed;
  }
  ::close(pidfd);
}

// One look at all processes; the number of those that it sent SIGKILL to.
int sweep_once(const char* token) {
  int killed = 0;
  const int proc = ::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (proc < 0) return 0;
  alignas(8) char records[8192];
  while (true) {
    const long size = ::syscall(SYS_getdents64, proc, records, sizeof records);
    if (size <= 0) break;
    for (long at = 0; at < size;) {
      const auto* record = reinterpret_cast<const Record*>(records + at);
      kill_if_marked(proc, records + at + offsetof(Record, name), token, &killed);
      at += record->size;
    }
  }
  ::close(proc);
  return killed;
}

[[noreturn]] void sweep_after(int lifeline, const char* token) {
  ::setsid();
  ::prctl(PR_SET_NAME, "lockstep-sweep");
  ::dup2(lifeline, 0);
  close_all_from(1);
  if (::chdir("/") != 0) ::_exit(1);
  pollfd launcher{0, 0, 0};
  while (::poll(&launcher, 1, -1) <= 0) {
  }
  // A process in the middle of exec has no environment for a moment: clean twice is clean.
  int clean = 0;
  for (int pass = 0; pass < 100 && clean < 2; ++pass) {
    clean = sweep_once(token) == 0 ? clean + 1 : 0;
    pause_ms(20);
  }
  ::_exit(0);
}

}  // namespace

Sweeper::Sweeper(const std::string& run_token) {
  char token[kTokenMax + 1] = {};
  run_token.copy(token, kTokenMax);
  Pipe lifeline = make_pipe();
  lifeline_ = std::move(lifeline.write_end);
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_ = ::fork();
  const int error = errno;
  if (pid_ == 0) sweep_after(lifeline.read_end.get(), token);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid_ < 0) {
    throw Error(ErrorCode::kEnvironment,
                fmt::format("cannot start another process: {}", std::strerror(error)));
  }
}

Sweeper::~Sweeper() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::string make_run_token() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

}  // namespace lockstep::launch
