#pragma once

#include <poll.h>

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/exchange/channel.h"
#include "src/launch/arena_keeper.h"
#include "src/launch/death_book.h"
#include "src/launch/group_control.h"
#include "src/launch/launcher.h"
#include "src/launch/member.h"
#include "src/launch/oom_kills.h"
#include "src/launch/output.h"
#include "src/launch/run_scope.h"
#include "src/launch/stop_signals.h"
#include "src/launch/sweeper.h"

namespace lockstep::launch {

/// The run of one group: one thread, one loop around poll(). Everything that can happen is looked
/// at again in each turn; nothing but poll() waits.
class GroupRun {
 public:
  explicit GroupRun(const LaunchOptions& options);
  ~GroupRun();

  LaunchResult run();  // once

 private:
  enum class Kind { kDeath, kExecError, kSocket, kStream };
  struct Watch {
    Kind kind;
    size_t member;
    bool is_stderr = false;
  };

  void start(uint32_t rank);
  bool all_over() const;
  bool any_stream_open() const;

  void turn();  // waits for something, deals with all that is there
  void watch_everything(std::vector<pollfd>& fds, std::vector<Watch>& watches) const;
  void tick();
  void take_signals();
  void look_for_death(Member& member);
  void look_for_child_death(Member& member);
  void end_member(Member& member, int wait_status);
  void note_wrapper(const Member& member);
  void note_ending(const Member& member, int wait_status);
  void note_death(const Member& member, const Death& death);
  void tell_failures(bool others_go_on);
  DeathCause cause_of(const Member& member, int wait_status) const;
  void read_exec_error(Member& member);
  void read_messages(Member& member);
  void register_process(Member& member, const exchange::Message& message);
  void kill_on_request(const Member& asker, const exchange::Message& message);
  void relay(Member& member, bool is_stderr, size_t limit_bytes);

  void end_run(int exit_status, const std::string& reason, std::chrono::milliseconds grace);
  void kill_all();
  void check_output();
  void finish();
  void drain();
  std::vector<pid_t> end_rest() const;
  std::string difference_of_copies() const;
  std::set<pid_t> not_orphans() const;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  const LaunchOptions& options_;
  const Clock::time_point begin_ = Clock::now();
  const uint64_t oom_kills_before_ = oom_kill_count();
  const std::string run_token_ = make_run_token();
  RunScope scope_;  // first: it sees to it that 0 to 2 are open before others open anything
  StopSignals signals_;
  Sweeper sweeper_;
  GroupControl control_;
  Output output_;
  ArenaKeeper arenas_;
  DeathBook book_;
  std::vector<Member> members_;
  Clock::time_point next_tick_ = begin_;
  Clock::time_point last_byte_ = begin_;
  std::optional<Clock::time_point> kill_at_;     // when the grace is over
  std::optional<Clock::time_point> give_up_at_;  // set by kill_all()
  std::string write_error_;
  std::vector<std::string> untold_;           // sentences about failures, see note_death()
  std::optional<Clock::time_point> tell_at_;  // when they are told
  bool hurry_ = false;                        // ended by a signal: no waiting for readers
};

}  // namespace lockstep::launch
