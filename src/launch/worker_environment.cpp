#include "src/launch/worker_environment.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/number.h"
#include "src/exchange/control.h"

namespace lockstep::launch {
namespace {

constexpr const char* kControlFd = "LOCKSTEP_CONTROL_FD";
constexpr const char* kSocketFd = "LOCKSTEP_SOCKET_FD";
constexpr const char* kLifelineFd = "LOCKSTEP_LIFELINE_FD";
constexpr const char* kRank = "LOCKSTEP_RANK";
constexpr const char* kIncarnation = "LOCKSTEP_INCARNATION";
constexpr std::array kOurs = {kControlFd, kSocketFd, kLifelineFd, kRank, kIncarnation};
constexpr const char* kRun = "LOCKSTEP_RUN";

[[noreturn]] void refuse(const char* name, const std::string& problem) {
  throw Error(
      ErrorCode::kEnvironment,
      fmt::format("environment variable {} {}. It is set by `lockstep run` for its replicas; "
                  "a program started by a replica must be started without LOCKSTEP_*",
                  name, problem));
}

uint32_t number_of(const char* name, uint32_t low, uint32_t high) {
  const char* text = std::getenv(name);
  if (text == nullptr) refuse(name, "is missing, though others of its kind are set");
  const auto number = base::number_from<uint32_t>(text);
  if (!number || *number < low || *number > high) {
    refuse(name, fmt::format("is '{}', expected a number from {} to {}", text, low, high));
  }
  return *number;
}

enum class DescriptorKind { kMemory, kSocket, kPipe };

bool is_of_kind(int fd, DescriptorKind kind) {
  struct stat status {};
  switch (kind) {
    case DescriptorKind::kMemory:
      return (::fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) != 0 && ::fcntl(fd, F_GET_SEALS) >= 0;
    case DescriptorKind::kSocket: {
      int type = 0;
      socklen_t size = sizeof type;
      return ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
    }
    case DescriptorKind::kPipe: return ::fstat(fd, &status) == 0 && S_ISFIFO(status.st_mode);
  }
  return false;
}

int descriptor_of(const char* name, DescriptorKind kind) {
  const auto fd = static_cast<int>(number_of(name, 3, INT32_MAX));
  if (::fcntl(fd, F_GETFD) < 0) {
    refuse(name,
           fmt::format("names file descriptor {}, which is not open here: did a wrapper (sudo, "
                       "a shell function, a container) close inherited descriptors?",
                       fd));
  }
  if (!is_of_kind(fd, kind)) {
    refuse(name,
           fmt::format("names file descriptor {}, which is something else here: did a wrapper "
                       "close inherited descriptors and open others?",
                       fd));
  }
  return fd;
}

std::string_view name_of(std::string_view variable) {
  return variable.substr(0, variable.find('='));
}

std::optional<std::string> value_in(const char* const* environment, std::string_view name) {
  for (; *environment != nullptr; ++environment) {
    const std::string_view variable = *environment;
    if (name_of(variable) == name && variable.size() > name.size()) {
      return std::string(variable.substr(name.size() + 1));
    }
  }
  return std::nullopt;
}

// Belongs to the rendezvous of another launcher, which the replicas are no part of.
bool is_foreign(std::string_view name) {
  return name == "MASTER_ADDR" || name == "MASTER_PORT" || name == "GROUP_RANK" ||
         name == "GROUP_WORLD_SIZE" || name == "ROLE_RANK" || name == "ROLE_WORLD_SIZE" ||
         name == "ROLE_NAME" || name.starts_with("TORCHELASTIC_");
}

struct LauncherSign {
  const char* launcher;
  const char* size;
  const char* rank;  // must be set as well; null: none
};

std::optional<std::string> launcher_by(const LauncherSign& sign, const char* const* environment) {
  const auto size = value_in(environment, sign.size);
  if (!size || (sign.rank != nullptr && !value_in(environment, sign.rank))) return std::nullopt;
  if (base::number_from<uint32_t>(*size).value_or(0) <= 1) return std::nullopt;
  return fmt::format("{} ({}={})", sign.launcher, sign.size, *size);
}

std::optional<std::string> job_launcher_in(const char* const* environment) {
  // A batch script has SLURM_NTASKS too, and is one process: the size of the step decides there.
  const bool has_step = value_in(environment, "SLURM_STEP_NUM_TASKS").has_value();
  const LauncherSign signs[] = {
      {"Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", nullptr},
      {"an MPI launcher (PMI)", "PMI_SIZE", nullptr},
      {"Slurm's srun", has_step ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", "SLURM_PROCID"},
  };
  for (const LauncherSign& sign : signs) {
    if (auto found = launcher_by(sign, environment)) return found;
  }
  return std::nullopt;
}

}  // namespace

std::optional<WorkerEnvironment> worker_environment_from_environ() {
  bool any = false;
  for (const char* name : kOurs) any = any || std::getenv(name) != nullptr;
  if (!any) return std::nullopt;
  WorkerEnvironment worker;
  worker.control_fd = descriptor_of(kControlFd, DescriptorKind::kMemory);
  worker.socket_fd = descriptor_of(kSocketFd, DescriptorKind::kSocket);
  worker.lifeline_fd = descriptor_of(kLifelineFd, DescriptorKind::kPipe);
  worker.rank = number_of(kRank, 0, exchange::kMaxReplicas - 1);
  worker.incarnation = number_of(kIncarnation, 1, exchange::kMaxProcesses);
  return worker;
}

std::optional<std::string> foreign_launcher() {
  auto found = job_launcher_in(::environ);
  if (!found)
    found = launcher_by({"torchrun or a script like it", "WORLD_SIZE", nullptr}, ::environ);
  return found;
}

std::vector<std::string> worker_variables(const char* const* inherited,
                                          const WorkerVariables& variables) {
  const WorkerEnvironment& worker = variables.worker;
  // A run inside a replica of another run belongs to both.
  const std::string outer = value_in(inherited, kRun).value_or("");
  std::vector<std::string> ours = {
      fmt::format("{}={}{}{}", kRun, outer, outer.empty() ? "" : ":", variables.run_token),
      fmt::format("{}={}", kControlFd, worker.control_fd),
      fmt::format("{}={}", kSocketFd, worker.socket_fd),
      fmt::format("{}={}", kLifelineFd, worker.lifeline_fd),
      fmt::format("{}={}", kRank, worker.rank),
      fmt::format("{}={}", kIncarnation, worker.incarnation),
      fmt::format("OMP_NUM_THREADS={}", variables.thread_count),
      fmt::format("MKL_NUM_THREADS={}", variables.thread_count),
      fmt::format("RANK={}", worker.rank),
      fmt::format("WORLD_SIZE={}", variables.replica_count),
      fmt::format("LOCAL_RANK={}", worker.rank),
      fmt::format("LOCAL_WORLD_SIZE={}", variables.replica_count),
  };
  if (!value_in(inherited, "MKL_CBWR")) ours.emplace_back("MKL_CBWR=AUTO");
  // Every microbatch allocates and frees the same tensors. Without these the C library gives their
  // pages back to the kernel each time and takes new, zeroed ones: 3 % of a GPT's step.
  for (const char* variable : {"MALLOC_MMAP_THRESHOLD_=1073741824",
                               "MALLOC_TRIM_THRESHOLD_=4294967296", "MALLOC_TOP_PAD_=16777216"}) {
    if (!value_in(inherited, name_of(variable))) ours.emplace_back(variable);
  }
  const size_t own_count = ours.size();
  for (; *inherited != nullptr; ++inherited) {
    const std::string_view name = name_of(*inherited);
    bool overridden = is_foreign(name);
    for (size_t i = 0; i < own_count; ++i) overridden = overridden || name_of(ours[i]) == name;
    if (!overridden) ours.emplace_back(*inherited);
  }
  return ours;
}

std::vector<std::string> contradictions(const char* const* inherited, uint32_t replica_count,
                                        uint32_t thread_count) {
  std::vector<std::string> sentences;
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) {
    const auto value = value_in(inherited, name);
    if (value && base::number_from<uint32_t>(*value) != replica_count) {
      sentences.push_back(fmt::format("{}={} in the environment is not used: {}", name, *value,
                                      replica_count == 1
                                          ? "there is 1 replica"
                                          : fmt::format("there are {} replicas", replica_count)));
    }
  }
  for (const char* name : {"RANK", "LOCAL_RANK"}) {
    if (const auto value = value_in(inherited, name)) {
      sentences.push_back(fmt::format(
          "{}={} in the environment is not used: every replica gets its own", name, *value));
    }
  }
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}) {
    const auto value = value_in(inherited, name);
    if (value && base::number_from<uint32_t>(*value) != thread_count) {
      sentences.push_back(fmt::format(
          "{}={} in the environment is not used: the threads of a microbatch are part of the "
          "recipe (--threads {})",
          name, *value, thread_count));
    }
  }
  if (const auto address = value_in(inherited, "MASTER_ADDR")) {
    sentences.push_back(fmt::format(
        "MASTER_ADDR={} in the environment is not used: replicas of one host share memory",
        *address));
  }
  if (const auto launcher = job_launcher_in(inherited)) {
    sentences.push_back(fmt::format(
        "this command is itself one of several ranks of {}: each of them starts replicas of its "
        "own, which know nothing of the others'",
        *launcher));
  }
  return sentences;
}

}  // namespace lockstep::launch
