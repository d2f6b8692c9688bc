#include "src/launch/worker_environment.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "src/exchange/shared_memory.h"

namespace lockstep::launch {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class WorkerEnvironmentTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "SLURM_PROCID",
          "SLURM_STEP_NUM_TASKS", "WORLD_SIZE", "LOCKSTEP_CONTROL_FD", "LOCKSTEP_SOCKET_FD",
          "LOCKSTEP_LIFELINE_FD", "LOCKSTEP_RANK", "LOCKSTEP_INCARNATION"}) {
      ::unsetenv(name);
    }
  }

  void set_valid() {
    memory_ = exchange::make_shared_memory("test", 4096);
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    socket_ = exchange::Descriptor(ends[0]);
    other_socket_ = exchange::Descriptor(ends[1]);
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    pipe_ = exchange::Descriptor(ends[0]);
    other_pipe_ = exchange::Descriptor(ends[1]);
    values_ = {{"LOCKSTEP_CONTROL_FD", std::to_string(memory_.get())},
               {"LOCKSTEP_SOCKET_FD", std::to_string(socket_.get())},
               {"LOCKSTEP_LIFELINE_FD", std::to_string(pipe_.get())},
               {"LOCKSTEP_RANK", "3"},
               {"LOCKSTEP_INCARNATION", "12"}};
    for (const auto& [name, value] : values_) ::setenv(name.c_str(), value.c_str(), 1);
  }

  static std::string error_message() {
    try {
      worker_environment_from_environ();
      return "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kEnvironment);
      return error.what();
    }
  }

  exchange::Descriptor memory_, socket_, other_socket_, pipe_, other_pipe_;
  std::map<std::string, std::string> values_;
};

TEST_F(WorkerEnvironmentTest, NothingSetMeansAlone) {
  EXPECT_FALSE(worker_environment_from_environ().has_value());
}

TEST_F(WorkerEnvironmentTest, ReadsWhatTheLauncherSet) {
  set_valid();
  const auto worker = worker_environment_from_environ();
  ASSERT_TRUE(worker.has_value());
  EXPECT_EQ(worker->control_fd, memory_.get());
  EXPECT_EQ(worker->socket_fd, socket_.get());
  EXPECT_EQ(worker->lifeline_fd, pipe_.get());
  EXPECT_EQ(worker->rank, 3u);
  EXPECT_EQ(worker->incarnation, 12u);
}

TEST_F(WorkerEnvironmentTest, MissingVariableIsNamed) {
  set_valid();
  for (const auto& [name, value] : values_) {
    ::unsetenv(name.c_str());
    EXPECT_THAT(error_message(), HasSubstr(name));
    ::setenv(name.c_str(), value.c_str(), 1);
  }
}

TEST_F(WorkerEnvironmentTest, WhatIsNoNumberIsNamed) {
  set_valid();
  for (const auto& [name, value] : values_) {
    for (const std::string wrong :
         {"", "abc", "-1", "+3", " 3", "3 ", "0x3", "99999999999999999999"}) {
      ::setenv(name.c_str(), wrong.c_str(), 1);
      EXPECT_THAT(error_message(), HasSubstr(name)) << wrong;
    }
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  ::setenv("LOCKSTEP_RANK", "256", 1);
  EXPECT_THAT(error_message(),
              HasSubstr("LOCKSTEP_RANK is '256', expected a number from 0 to 255"));
  ::setenv("LOCKSTEP_RANK", "0", 1);
  ::setenv("LOCKSTEP_INCARNATION", "0", 1);
  EXPECT_THAT(error_message(), HasSubstr("LOCKSTEP_INCARNATION"));
}

TEST_F(WorkerEnvironmentTest, ClosedDescriptorIsNamedWithAReason) {
  for (const char* name : {"LOCKSTEP_CONTROL_FD", "LOCKSTEP_SOCKET_FD", "LOCKSTEP_LIFELINE_FD"}) {
    set_valid();
    ::setenv(name, "19999", 1);
    EXPECT_THAT(error_message(), HasSubstr(name));
    EXPECT_THAT(error_message(), HasSubstr("not open here: did a wrapper"));
  }
}

TEST_F(WorkerEnvironmentTest, DescriptorOfAnotherKindIsNamed) {
  set_valid();
  const exchange::Descriptor file(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const char* name : {"LOCKSTEP_CONTROL_FD", "LOCKSTEP_SOCKET_FD", "LOCKSTEP_LIFELINE_FD"}) {
    ::setenv(name, std::to_string(file.get()).c_str(), 1);
    EXPECT_THAT(error_message(), HasSubstr(name));
    EXPECT_THAT(error_message(), HasSubstr("something else here"));
    ::setenv(name, values_[name].c_str(), 1);
  }
}

TEST_F(WorkerEnvironmentTest, OtherLaunchersAreNamed) {
  EXPECT_EQ(foreign_launcher(), std::nullopt);
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE"}) {
    ::setenv(name, "1", 1);
    EXPECT_EQ(foreign_launcher(), std::nullopt) << name;
    ::setenv(name, "many", 1);
    EXPECT_EQ(foreign_launcher(), std::nullopt) << name;
    ::setenv(name, "4", 1);
    EXPECT_THAT(foreign_launcher().value_or(""), HasSubstr(std::string(name) + "=4"));
    ::unsetenv(name);
  }
}

TEST_F(WorkerEnvironmentTest, SlurmCountsWithinAStepOnly) {
  ::setenv("SLURM_NTASKS", "4", 1);
  EXPECT_EQ(foreign_launcher(), std::nullopt);  // an allocation's shell
  ::setenv("SLURM_PROCID", "0", 1);
  EXPECT_THAT(foreign_launcher().value_or(""), HasSubstr("SLURM_NTASKS=4"));
  ::setenv("SLURM_STEP_NUM_TASKS", "1", 1);
  EXPECT_EQ(foreign_launcher(), std::nullopt);
}

WorkerVariables example() {
  WorkerVariables variables;
  variables.worker = {10, 11, 12, 1, 2};
  variables.replica_count = 2;
  variables.thread_count = 3;
  variables.run_token = "feed";
  return variables;
}

TEST(WorkerVariables, OverrideInheritedOnesAndKeepTheRest) {
  const char* inherited[] = {
      "PATH=/bin",           "RANK=0",          "WORLD_SIZE=4", "LOCAL_RANK=0",
      "MASTER_ADDR=nowhere", "MASTER_PORT=1",   "GROUP_RANK=0", "TORCHELASTIC_RUN_ID=x",
      "OMP_NUM_THREADS=64",  "LOCKSTEP_RANK=9", "RANKS=kept",   nullptr};
  const auto variables = worker_variables(inherited, example());
  for (const char* expected :
       {"PATH=/bin", "RANKS=kept", "RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2",
        "OMP_NUM_THREADS=3", "MKL_NUM_THREADS=3", "MKL_CBWR=AUTO", "LOCKSTEP_CONTROL_FD=10",
        "LOCKSTEP_SOCKET_FD=11", "LOCKSTEP_LIFELINE_FD=12", "LOCKSTEP_RANK=1",
        "LOCKSTEP_INCARNATION=2", "LOCKSTEP_RUN=feed", "MALLOC_MMAP_THRESHOLD_=1073741824",
        "MALLOC_TRIM_THRESHOLD_=4294967296", "MALLOC_TOP_PAD_=16777216"}) {
    EXPECT_THAT(variables, Contains(expected));
  }
  EXPECT_EQ(variables.size(), 18u);  // and nothing else
}

TEST(WorkerVariables, KeepTheUsersReproducibilityMode) {
  const char* inherited[] = {"MKL_CBWR=AVX2", nullptr};
  const auto variables = worker_variables(inherited, example());
  EXPECT_THAT(variables, Contains("MKL_CBWR=AVX2"));
  EXPECT_THAT(variables, Not(Contains("MKL_CBWR=AUTO")));
}

TEST(WorkerVariables, KeepTheUsersChoiceForTheAllocator) {
  const char* inherited[] = {"MALLOC_TRIM_THRESHOLD_=1", nullptr};
  const auto variables = worker_variables(inherited, example());
  EXPECT_THAT(variables, Contains("MALLOC_TRIM_THRESHOLD_=1"));
  EXPECT_THAT(variables, Not(Contains("MALLOC_TRIM_THRESHOLD_=4294967296")));
}

TEST(WorkerVariables, RunInsideARunBelongsToBoth) {
  const char* inherited[] = {"LOCKSTEP_RUN=cafe", nullptr};
  EXPECT_THAT(worker_variables(inherited, example()), Contains("LOCKSTEP_RUN=cafe:feed"));
}

TEST(Contradictions, AreToldWithTheirValues) {
  const char* inherited[] = {"WORLD_SIZE=4", "RANK=0", "MASTER_ADDR=nowhere", "OMP_NUM_THREADS=6",
                             nullptr};
  EXPECT_THAT(contradictions(inherited, 2, 1),
              ElementsAre(HasSubstr("WORLD_SIZE=4 in the environment is not used: there are 2"),
                          HasSubstr("RANK=0"), HasSubstr("OMP_NUM_THREADS=6"),
                          HasSubstr("MASTER_ADDR=nowhere")));
  const char* nonsense[] = {"WORLD_SIZE=abc", nullptr};
  EXPECT_THAT(contradictions(nonsense, 1, 1), ElementsAre(HasSubstr("there is 1 replica")));
}

TEST(Contradictions, ThreadsAreTheRecipesWhateverTheEnvironmentSays) {
  for (const char* value :
       {"OMP_NUM_THREADS=1", "OMP_NUM_THREADS=", "OMP_NUM_THREADS=4,2", "MKL_NUM_THREADS=6"}) {
    const char* inherited[] = {value, nullptr};
    EXPECT_THAT(contradictions(inherited, 2, 3),
                ElementsAre(testing::AllOf(HasSubstr(value), HasSubstr("--threads 3"))));
  }
}

TEST(Contradictions, AnotherLauncherAroundUsIsToldOnce) {
  const char* mpi[] = {"OMPI_COMM_WORLD_SIZE=4", "PMI_SIZE=4", nullptr};
  EXPECT_THAT(contradictions(mpi, 2, 1), ElementsAre(HasSubstr("(OMPI_COMM_WORLD_SIZE=4): each")));
  const char* pmi[] = {"PMI_SIZE=2", "PMI_RANK=0", nullptr};
  EXPECT_THAT(contradictions(pmi, 2, 1), ElementsAre(HasSubstr("(PMI_SIZE=2)")));
  const char* step[] = {"SLURM_NTASKS=1", "SLURM_STEP_NUM_TASKS=3", "SLURM_PROCID=0", nullptr};
  EXPECT_THAT(contradictions(step, 2, 1), ElementsAre(HasSubstr("SLURM_STEP_NUM_TASKS=3")));
  const char* batch[] = {"SLURM_NTASKS=4", "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1", nullptr};
  EXPECT_THAT(contradictions(batch, 2, 1), IsEmpty());
  const char* alone[] = {"OMPI_COMM_WORLD_SIZE=1", "PMI_SIZE=1", nullptr};
  EXPECT_THAT(contradictions(alone, 2, 1), IsEmpty());
}

TEST(Contradictions, AgreementIsSilent) {
  const char* inherited[] = {"WORLD_SIZE=2", "OMP_NUM_THREADS=1", "PATH=/bin", nullptr};
  EXPECT_THAT(contradictions(inherited, 2, 1), IsEmpty());
}

}  // namespace
}  // namespace lockstep::launch
