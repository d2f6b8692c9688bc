#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// The environment variables between launcher and replica: written and parsed here and nowhere else.

namespace lockstep::launch {

/// What a replica learns from its launcher. The descriptors are inherited and not yet owned.
struct WorkerEnvironment {
  int control_fd = -1;       // LOCKSTEP_CONTROL_FD: the memfd of the control block
  int socket_fd = -1;        // LOCKSTEP_SOCKET_FD: the channel to the launcher
  int lifeline_fd = -1;      // LOCKSTEP_LIFELINE_FD: a pipe whose only write end the launcher holds
  uint32_t rank = 0;         // LOCKSTEP_RANK
  uint32_t incarnation = 0;  // LOCKSTEP_INCARNATION, from 1
};

/// Empty where none of the five variables is set: the program runs alone. Throws
/// Error(kEnvironment), naming the variable, where some are missing, are no numbers, or name a
/// descriptor that is not open or is something else (a wrapper closed it).
std::optional<WorkerEnvironment> worker_environment_from_environ();

/// Where none of ours is set but another launcher (mpirun, srun, torchrun) says that the program is
/// one of several ranks: which, in words. To be refused, for otherwise each of them would silently
/// be a group of one.
std::optional<std::string> foreign_launcher();

/// What the variables of one replica are made of.
struct WorkerVariables {
  WorkerEnvironment worker;
  uint32_t replica_count = 1;
  uint32_t thread_count = 1;
  std::string run_token;  // marks every process of the run, see sweeper.h
};

/// The environment of a replica, as "NAME=value": `inherited` (null-terminated, like environ) with
/// ours added, thread counts and MKL_CBWR pinned, RANK, WORLD_SIZE and their like set to the truth
/// and what belongs to another launcher's rendezvous removed.
std::vector<std::string> worker_variables(const char* const* inherited,
                                          const WorkerVariables& variables);

/// One sentence for each inherited variable that says something else than what the replicas get.
std::vector<std::string> contradictions(const char* const* inherited, uint32_t replica_count,
                                        uint32_t thread_count);

}  // namespace lockstep::launch
