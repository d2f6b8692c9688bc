// The program that the tests of this folder start, as launcher and as replica:
//
//   launch_probe launch -n COUNT [--raw] [--grace MS] [--log-dir DIR] [--tee RANKS] -- COMMAND...
//     a run, as the command line does it
//
//   launch_probe replica ACTION...
//     does one thing after the other; "2:exit=3" only on rank 2

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "src/exchange/event.h"
#include "src/launch/launcher.h"
#include "src/launch/rank_list.h"
#include "src/launch/replica_link.h"

namespace {

using lockstep::exchange::Descriptor;
using lockstep::exchange::Mapping;
using lockstep::exchange::ProcessState;
using lockstep::launch::ReplicaLink;

constexpr int kGaveUp = 99;  // exit status of a replica that waited in vain

void print(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t size = ::write(fd, text.data() + done, text.size() - done);
    if (size < 0) ::_exit(98);
    done += static_cast<size_t>(size);
  }
}

class Probe {
 public:
  void perform(const std::string& action) {
    const size_t equals = action.find('=');
    const std::string name = action.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : action.substr(equals + 1);
    const auto found = actions_.find(name);
    if (found == actions_.end()) throw std::runtime_error("no such action: " + name);
    found->second(value);
  }

 private:
  using Action = std::function<void(const std::string&)>;

  uint32_t state_of(uint32_t rank) {
    const auto& control = link_->control();
    return control.processes[control.seat[rank]].state;
  }

  // Until `done` says so, woken by the group's event only: its timeout is longer than the deadline.
  void wait_for_event(const std::function<bool()>& done, int seconds) {
    lockstep::exchange::Event event(&link_->control().event, link_->rank(), 0);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    while (true) {
      const uint32_t seen = event.value();
      if (done()) return;
      if (std::chrono::steady_clock::now() > end) ::_exit(kGaveUp);
      event.wait(seen, 60'000);
    }
  }

  void request(const std::string& value) {
    const auto index = static_cast<uint32_t>(std::stoul(value));
    const std::string expected = value.substr(value.find(':') + 1);
    const auto arena = link_->request_arena(index, std::chrono::seconds(20));
    if (!arena) ::_exit(kGaveUp);
    const Mapping mapping(arena->memory, 0, arena->size_bytes, Mapping::Kind::kShared);
    const char* text = reinterpret_cast<const char*>(mapping.data());
    if (expected != text) throw std::runtime_error("the arena holds '" + std::string(text) + "'");
  }

  void offer(const std::string& value) {
    const auto index = static_cast<uint32_t>(std::stoul(value));
    const std::string text = value.substr(value.find(':') + 1);
    const Descriptor memory = lockstep::exchange::make_shared_memory("probe", 4096);
    const Mapping mapping(memory, 0, 4096, Mapping::Kind::kShared);
    std::strcpy(reinterpret_cast<char*>(mapping.data()), text.c_str());
    if (!link_->offer_arena(index, 4096, memory)) print(1, "offer refused\n");
  }

  static void sleep_for_ever() {
    while (true) ::pause();
  }

  // A helper that outlives its parent and hides from process groups and sessions.
  static void start_child(const std::string& pid_file) {
    if (::fork() != 0) return;
    ::setsid();
    if (!pid_file.empty()) write_pid(pid_file);
    sleep_for_ever();
  }

  static void write_pid(const std::string& path) {
    std::ofstream(path, std::ios::app) << ::getpid() << '\n' << std::flush;
  }

  // Lines of 3000 equal letters, each in one write: small ones to stdout, capitals to stderr.
  static void print_letters(int count) {
    const char letter = static_cast<char>('a' + std::atoi(std::getenv("LOCKSTEP_RANK")));
    for (int i = 0; i < count; ++i) {
      print(1, std::string(3000, letter) + "\n");
      print(2, std::string(3000, static_cast<char>(letter - 'a' + 'A')) + "\n");
    }
  }

  // Step reports 1 .. count, waiting for room in the ring as a replica does.
  void send_reports(uint64_t count) {
    for (uint64_t step = 1; step <= count; ++step) {
      lockstep::exchange::StepReport report{};
      report.step = step;
      wait_for_event(
          [&] { return lockstep::exchange::push_report(link_->control(), link_->rank(), report); },
          20);
    }
  }

  std::unique_ptr<ReplicaLink> link_;
  const std::map<std::string, Action> actions_ = {
      {"register",
       [this](const std::string&) {
         const auto environment = lockstep::launch::worker_environment_from_environ();
         if (!environment) throw std::runtime_error("not started by a launcher");
         link_ = std::make_unique<ReplicaLink>(*environment);
       }},
      {"exit", [](const std::string& value) { std::exit(std::stoi(value)); }},
      {"throw", [](const std::string& value) { throw std::runtime_error(value); }},
      {"raise",
       [](const std::string& value) {
         ::signal(std::stoi(value), SIG_DFL);
         ::raise(std::stoi(value));
       }},
      {"drill",
       [this](const std::string&) {
         link_->announce_drill();
         ::raise(SIGKILL);
       }},
      {"step", [this](const std::string& value) { link_->entry().step = std::stoul(value); }},
      {"microbatch",
       [this](const std::string& value) {
         link_->entry().microbatch = static_cast<uint32_t>(std::stoul(value));
       }},
      {"copy",  // UPDATES:HASH
       [this](const std::string& value) {
         link_->entry().update_count = std::stoul(value);
         link_->entry().copies_low = std::stoul(value.substr(value.find(':') + 1));
       }},
      {"out", [](const std::string& value) { print(1, value + "\n"); }},
      {"err", [](const std::string& value) { print(2, value + "\n"); }},
      {"partial", [](const std::string& value) { print(1, value); }},
      {"err_partial", [](const std::string& value) { print(2, value); }},
      {"bytes", [](const std::string& value) { print(1, std::string(std::stoul(value), 'x')); }},
      {"lines",
       [](const std::string& value) {
         for (int i = 0; i < std::stoi(value); ++i) print(1, "line " + std::to_string(i) + "\n");
       }},
      {"letters", [](const std::string& value) { print_letters(std::stoi(value)); }},
      {"reports", [this](const std::string& value) { send_reports(std::stoul(value)); }},
      {"flood",
       [](const std::string&) {
         while (true) print(1, std::string(1000, 'f') + "\n");
       }},
      {"getenv",
       [](const std::string& value) {
         const char* found = std::getenv(value.c_str());
         print(1, value + "=" + (found == nullptr ? "(unset)" : found) + "\n");
       }},
      {"close", [](const std::string& value) { ::close(std::atoi(std::getenv(value.c_str()))); }},
      {"sleep", [](const std::string&) { sleep_for_ever(); }},
      {"wait_ended",
       [this](const std::string& value) {
         const auto rank = static_cast<uint32_t>(std::stoul(value));
         wait_for_event(
             [&] { return state_of(rank) == static_cast<uint32_t>(ProcessState::kEnded); }, 20);
       }},
      {"wait_registered",
       [this](const std::string& value) {
         const auto rank = static_cast<uint32_t>(std::stoul(value));
         wait_for_event(
             [&] { return state_of(rank) >= static_cast<uint32_t>(ProcessState::kRegistered); },
             20);
       }},
      {"offer", [this](const std::string& value) { offer(value); }},
      {"request", [this](const std::string& value) { request(value); }},
      {"ask_kill",
       [this](const std::string& value) {
         const auto rank = static_cast<uint32_t>(std::stoul(value));
         link_->ask_to_kill(link_->control().seat[rank], 300);
       }},
      {"ignore", [](const std::string& value) { ::signal(std::stoi(value), SIG_IGN); }},
      {"kill_parent", [](const std::string&) { ::kill(::getppid(), SIGKILL); }},
      {"child", [](const std::string& value) { start_child(value); }},
      {"pid", [](const std::string& value) { write_pid(value); }},
      {"stop", [](const std::string&) { ::raise(SIGSTOP); }},
  };
};

int replica(int count, char** actions) {
  // Faults are on purpose here: no core files.
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  const char* rank = std::getenv("LOCKSTEP_RANK");
  const std::string own = std::string(rank == nullptr ? "-" : rank) + ":";
  Probe probe;
  for (int i = 0; i < count; ++i) {
    std::string action = actions[i];
    const size_t colon = action.find(':');
    if (colon != std::string::npos && colon <= 3 &&
        action.find_first_not_of("0123456789") == colon) {
      if (!action.starts_with(own)) continue;
      action.erase(0, own.size());
    }
    probe.perform(action);
  }
  return 0;
}

int launch(int count, char** arguments) {
  lockstep::launch::LaunchOptions options;
  int i = 0;
  for (; i < count && std::strcmp(arguments[i], "--") != 0; ++i) {
    if (std::strcmp(arguments[i], "--raw") == 0) {
      options.prefix_lines = false;
    } else if (std::strcmp(arguments[i], "-n") == 0 && i + 1 < count) {
      options.replica_count = static_cast<uint32_t>(std::atoi(arguments[++i]));
    } else if (std::strcmp(arguments[i], "--grace") == 0 && i + 1 < count) {
      options.grace = std::chrono::milliseconds(std::atoi(arguments[++i]));
    } else if (std::strcmp(arguments[i], "--log-dir") == 0 && i + 1 < count) {
      options.log_folder = arguments[++i];
    } else if (std::strcmp(arguments[i], "--tee") == 0 && i + 1 < count) {
      options.is_shown =
          lockstep::launch::parse_ranks("--tee", arguments[++i], options.replica_count);
    }
  }
  for (++i; i < count; ++i) options.command.emplace_back(arguments[i]);
  const auto result = lockstep::launch::run_group(options);
  const std::string report = lockstep::launch::failure_report(result);
  if (!report.empty()) std::fprintf(stderr, "lockstep: %s\n", report.c_str());
  return result.exit_status;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string role = count > 1 ? arguments[1] : "";
  if (role == "replica") return replica(count - 2, arguments + 2);
  try {
    if (role == "launch") return launch(count - 2, arguments + 2);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return 1;
  }
  std::fprintf(stderr, "launch_probe launch|replica ...\n");
  return 2;
}
