#include "src/launch/group_run.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "src/launch/worker_environment.h"

namespace lockstep::launch {
namespace {

using exchange::Descriptor;
using exchange::MessageType;
using std::chrono::milliseconds;

constexpr milliseconds kTick{50};
constexpr milliseconds kPartialLine{200};  // unfinished lines are shown after this
constexpr milliseconds kUnknownStatus{
    200};  // a wrapper has this long to tell how its program ended
constexpr milliseconds kSameFailure{1'000};  // others may fail for the same reason so long after
constexpr milliseconds kOpenPipes{1'000};    // held by what the replicas left behind
constexpr milliseconds kUnkillable{20'000};  // after SIGKILL: much memory takes seconds to free
constexpr milliseconds kFailedStart{500};    // grace, where nothing can be lost yet
constexpr size_t kRelayBytes = size_t{64} * 1024;  // of one stream at a time
constexpr int kBrokenOutput = 141;                 // 128 + SIGPIPE, as a shell says it

}  // namespace

GroupRun::GroupRun(const LaunchOptions& options)
    : options_(options),
      scope_(options.replica_count),
      sweeper_(run_token_),
      control_(options),
      output_(options) {
  members_.reserve(options.replica_count);
}

// Only an exception (a callback's, no more processes) leaves anything for this to do.
GroupRun::~GroupRun() {
  for (Member& member : members_) {
    member.lifeline.reset();
    signal_member(member, SIGKILL);
  }
  end_rest();
}

LaunchResult GroupRun::run() {
  for (const std::string& sentence :
       contradictions(::environ, options_.replica_count, options_.thread_count)) {
    output_.notice(sentence);
  }
  for (uint32_t rank = 0; rank < options_.replica_count && !book_.is_ending(); ++rank) start(rank);
  while (!all_over()) {
    turn();
    if (give_up_at_ && Clock::now() > *give_up_at_) break;
  }
  finish();
  LaunchResult result = book_.result(seconds());
  for (Death& death : result.deaths) {
    death.lines_are_on_screen = output_.is_on_screen(death.rank, death.lines_begin);
  }
  if (result.exit_status == 0 && !write_error_.empty()) {
    result.exit_status = 1;
    result.reason = write_error_;
  }
  if (result.exit_status == 0) {
    result.reason = difference_of_copies();
    if (!result.reason.empty()) result.exit_status = 1;
  }
  return result;
}

// Replicas compare their copies in the step after an update; after the last there is none. A
// replica that made fewer updates than the others left early, and its copy is another on purpose.
std::string GroupRun::difference_of_copies() const {
  uint64_t most = 0;
  for (const Member& member : members_) {
    if (member.ended == 0)
      most = std::max(most, control_.entry(member.incarnation).update_count.load());
  }
  const Member* first = nullptr;
  for (const Member& member : members_) {
    const exchange::ProcessEntry& entry = control_.entry(member.incarnation);
    if (member.ended != 0 || entry.update_count != most) continue;
    if (first == nullptr) first = &member;
    const exchange::ProcessEntry& of_first = control_.entry(first->incarnation);
    if (entry.copies_low == of_first.copies_low && entry.copies_high == of_first.copies_high)
      continue;
    return fmt::format(
        "rank {}'s copy of the model differs from rank {}'s after the last update ({} in all), "
        "though both ended with status 0. Something changed parameters or gradients on one replica "
        "only: an update under `if (rank == 0)`, other options of the optimizer, a load. What "
        "either "
        "has saved is not the result of one training",
        member.rank, first->rank, most);
  }
  return "";
}

void GroupRun::start(uint32_t rank) {
  const uint32_t incarnation = rank + 1;
  control_.take_seat(rank, incarnation);
  const std::vector<uint32_t> no_cpus;
  members_.push_back(
      start_member({rank, incarnation, options_.replica_count, options_.thread_count,
                    options_.command, control_.fd(), run_token_, signals_, scope_.open_file_limit(),
                    options_.cpus.empty() ? no_cpus : options_.cpus[rank]}));
  take_signals();
}

bool GroupRun::all_over() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.is_over(); });
}

bool GroupRun::any_stream_open() const {
  return std::any_of(members_.begin(), members_.end(), [](const Member& member) {
    return member.streams[0].is_open() || member.streams[1].is_open();
  });
}

void GroupRun::watch_everything(std::vector<pollfd>& fds, std::vector<Watch>& watches) const {
  const auto watch = [&](int fd, Watch watch_for) {
    fds.push_back({fd, POLLIN, 0});
    watches.push_back(watch_for);
  };
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    if (!member.child_status) watch(member.child_pidfd.get(), {Kind::kDeath, i});
    if (member.registered_pidfd && !member.ended && !member.status_deadline) {
      watch(member.registered_pidfd.get(), {Kind::kDeath, i});
    }
    if (member.exec_error) watch(member.exec_error.get(), {Kind::kExecError, i});
    if (member.socket) watch(member.socket.get(), {Kind::kSocket, i});
  }
  // Last, so that deaths are known before the lines that were printed because of them.
  for (size_t i = 0; i < members_.size(); ++i) {
    for (const bool is_stderr : {false, true}) {
      const Stream& stream = members_[i].streams[is_stderr ? 1 : 0];
      if (stream.is_open() && output_.has_room(is_stderr)) {
        watch(stream.fd(), {Kind::kStream, i, is_stderr});
      }
    }
  }
}

void GroupRun::turn() {
  std::vector<pollfd> fds;
  std::vector<Watch> watches;  // [index in fds]
  watch_everything(fds, watches);
  const size_t watched = fds.size();
  fds.push_back({signals_.fd(), POLLIN, 0});
  output_.watch(fds);
  const auto wait = std::chrono::ceil<milliseconds>(next_tick_ - Clock::now()).count();
  ::poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(0, wait)));

  take_signals();
  for (size_t i = 0; i < watched; ++i) {
    if (fds[i].revents == 0) continue;
    Member& member = members_[watches[i].member];
    switch (watches[i].kind) {
      case Kind::kDeath: look_for_death(member); break;
      case Kind::kExecError: read_exec_error(member); break;
      case Kind::kSocket: read_messages(member); break;
      case Kind::kStream: relay(member, watches[i].is_stderr, kRelayBytes); break;
    }
  }
  output_.write_ready();
  check_output();
  if (Clock::now() >= next_tick_) tick();
}

void GroupRun::tick() {
  next_tick_ = Clock::now() + kTick;
  if (options_.on_tick) {
    const bool was_full = control_.any_ring_full();
    options_.on_tick(control_.block());
    if (was_full) control_.notify();
  }
  for (Member& member : members_) {
    for (Stream& stream : member.streams) {
      stream.flush_since(output_, member.last_lines, Clock::now() - kPartialLine);
    }
    if (member.status_deadline) look_for_death(member);
  }
  reap_orphans(not_orphans());
  if (tell_at_ && Clock::now() > *tell_at_) tell_failures(!all_over());
  if (kill_at_ && Clock::now() > *kill_at_) kill_all();
}

std::set<pid_t> GroupRun::not_orphans() const {
  auto known = scope_.foreign_children();
  known.insert(sweeper_.pid());
  for (const Member& member : members_) {
    if (!member.child_status) known.insert(member.child_pid);
    if (member.is_registered && !member.ended) known.insert(member.registered_pid);
  }
  return known;
}

void GroupRun::take_signals() {
  while (const auto signal = signals_.take()) {
    hurry_ = true;
    if (book_.is_ending() || *signal == SIGINT) {
      end_run(128 + *signal, "interrupted", milliseconds(0));
      kill_all();
    } else {
      end_run(128 + *signal, fmt::format("ended by signal {} ({})", *signal, ::strsignal(*signal)),
              options_.grace);
    }
  }
}

// A replica is dead when the process that registered is, or, where none did, when the command is.
void GroupRun::look_for_death(Member& member) {
  // A signal to the whole process group reached us before any death by it can be seen.
  take_signals();
  look_for_child_death(member);
  if (member.ended) return;
  if (!member.registered_pidfd) {
    if (member.child_status) end_member(member, *member.child_status);
    return;
  }
  pollfd dead{member.registered_pidfd.get(), POLLIN, 0};
  if (::poll(&dead, 1, 0) <= 0) return;
  auto status = take_wait_status(member.registered_pidfd, member.registered_pid);
  const auto now = Clock::now();
  if (!member.status_deadline) member.status_deadline = now + kUnknownStatus;
  if (!status && member.child_status) {
    // A shell passes on how its program ended; it says 128 + n for signal n.
    const int code = shell_status(*member.child_status);
    status = code > 128 && code < 128 + 65 ? code - 128 : code << 8;
  }
  if (!status && now > *member.status_deadline) status = SIGKILL;  // unknown: no fault, no success
  if (!status) return;
  member.status_deadline.reset();
  end_member(member, *status);
}

void GroupRun::look_for_child_death(Member& member) {
  if (member.child_status) return;
  pollfd dead{member.child_pidfd.get(), POLLIN, 0};
  if (::poll(&dead, 1, 0) <= 0) return;
  read_exec_error(member);
  read_messages(member);  // it may have registered just before
  const int status = take_wait_status(member.child_pidfd, member.child_pid).value_or(SIGKILL);
  member.child_status = status;
  if (member.ended) note_wrapper(member);
}

// The replica was a success, the script around it was not.
void GroupRun::note_wrapper(const Member& member) {
  const bool is_wrapper = static_cast<bool>(member.registered_pidfd);
  if (is_wrapper && *member.ended == 0 && *member.child_status != 0) {
    note_ending(member, *member.child_status);
  }
}

void GroupRun::end_member(Member& member, int wait_status) {
  control_.publish_death(member.rank, member.incarnation, wait_status);
  member.ended = wait_status;
  // What it printed before its death belongs before the sentence about it, and into the report. The
  // streams may go on: what it started holds their other ends.
  for (const bool is_stderr : {false, true}) {
    relay(member, is_stderr, 16 * kRelayBytes);
    member.streams[is_stderr ? 1 : 0].flush(output_, member.last_lines);
  }
  note_ending(member, wait_status);
  if (member.child_status) note_wrapper(member);
}

void GroupRun::note_ending(const Member& member, int wait_status) {
  const exchange::ProcessEntry& entry = control_.entry(member.incarnation);
  Ending ending;
  ending.rank = member.rank;
  ending.incarnation = member.incarnation;
  ending.wait_status = wait_status;
  ending.is_registered = member.is_registered;
  ending.step = entry.step;
  ending.microbatch = entry.microbatch;
  ending.cause = cause_of(member, wait_status);
  ending.is_out_of_memory = WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL &&
                            oom_kill_count() > oom_kills_before_;
  ending.seconds = seconds();
  const auto& lines = member.last_lines.lines();
  ending.last_stderr_lines = {lines.begin(), lines.end()};
  ending.lines_begin = member.last_lines.first_row();
  if (wait_status == 0 && !untold_.empty()) tell_failures(true);
  if (const Death* death = book_.add(std::move(ending))) note_death(member, *death);
}

DeathCause GroupRun::cause_of(const Member& member, int wait_status) const {
  if (book_.is_ending()) return DeathCause::kLauncher;
  if (!WIFSIGNALED(wait_status) || exchange::is_work_fault(wait_status)) return DeathCause::kItself;
  if (member.kill_requested) return DeathCause::kRequested;
  const uint32_t reason = control_.entry(member.incarnation).kill_reason_rank;
  return reason == member.rank + 1 ? DeathCause::kDrill : DeathCause::kOutside;
}

void GroupRun::note_death(const Member& member, const Death& death) {
  if (book_.is_ending()) return;
  if (!member.is_registered && options_.end_on_failure_before_registration) {
    // failure_report() says the rest: one message.
    end_run(shell_status(death.wait_status), "", std::min(kFailedStart, options_.grace));
    return;
  }
  if (death.is_consequence) return;
  if (death.is_fault) {
    // All may fail alike: whether the others go on is known when one has, or after a while. Where
    // none does, failure_report() says what there is to say.
    untold_.push_back(fmt::format("rank {} {}", death.rank, death.description));
    if (!tell_at_) tell_at_ = Clock::now() + kSameFailure;
    return;
  }
  const bool others = std::any_of(members_.begin(), members_.end(),
                                  [](const Member& other) { return !other.ended; });
  output_.notice(fmt::format("rank {} {}{}", death.rank, death.description,
                             others ? "; the others go on" : ""));
}

void GroupRun::tell_failures(bool others_go_on) {
  for (const std::string& sentence : untold_) {
    output_.notice(sentence + (others_go_on ? "; the others go on" : ""));
  }
  untold_.clear();
  tell_at_.reset();
}

void GroupRun::read_exec_error(Member& member) {
  if (!member.exec_error) return;
  pollfd ready{member.exec_error.get(), POLLIN, 0};
  if (::poll(&ready, 1, 0) <= 0) return;
  int error = 0;
  const bool failed = ::read(member.exec_error.get(), &error, sizeof error) == sizeof error;
  member.exec_error.reset();
  if (!failed) return;
  end_run(error == ENOENT ? 127 : 126,
          fmt::format("cannot start '{}': {}", options_.command[0], ::strerror(error)),
          std::min(kFailedStart, options_.grace));
}

void GroupRun::read_messages(Member& member) {
  bool closed = false;
  for (int i = 0; i < 16 && member.socket && !closed; ++i) {
    auto received = exchange::receive_message(member.socket.get(), 0, &closed);
    if (!received) break;
    const exchange::Message& message = received->message;
    const int socket = member.socket.get();
    switch (message.type) {
      case MessageType::kRegister: register_process(member, message); break;
      case MessageType::kOfferArena:
        arenas_.offer(socket, message, std::move(received->descriptor));
        break;
      case MessageType::kRequestArena: arenas_.request(socket, message); break;
      case MessageType::kKill: kill_on_request(member, message); break;
      default: break;
    }
  }
  if (!closed) return;
  arenas_.forget(member.socket.get());
  member.socket.reset();
}

void GroupRun::register_process(Member& member, const exchange::Message& message) {
  const auto pid = static_cast<pid_t>(message.value);
  const bool is_child = pid == member.child_pid;
  Descriptor pidfd = is_child ? Descriptor() : open_pidfd(pid);
  // The number of a process in another namespace means somebody else here.
  const bool is_ours = is_child || (pidfd && is_descendant(pid, ::getpid()));
  if (member.ended || member.is_registered || !is_ours) {
    exchange::send_message(member.socket.get(), {MessageType::kRefused, message.index, 0});
    return;
  }
  member.is_registered = true;
  member.registered_pid = pid;
  member.registered_pidfd = std::move(pidfd);
  const auto launcher = static_cast<uint64_t>(::getpid());
  exchange::send_message(member.socket.get(), {MessageType::kAccepted, message.index, launcher});
}

void GroupRun::kill_on_request(const Member& asker, const exchange::Message& message) {
  const auto target = std::find_if(members_.begin(), members_.end(), [&](const Member& member) {
    return member.incarnation == message.index;
  });
  if (target == members_.end() || target->ended || target->kill_requested) return;
  target->kill_requested = true;
  exchange::ProcessEntry& entry = control_.entry(target->incarnation);
  entry.kill_reason_rank = asker.rank + 1;
  const std::string place = describe_place(entry.step, entry.microbatch);
  output_.notice(fmt::format("rank {} has waited {} seconds for rank {}{}{}: killing rank {}",
                             asker.rank, message.value, target->rank,
                             place.empty() ? "" : ", which is", place, target->rank));
  send_signal(target->replica_pidfd(), SIGKILL);
}

void GroupRun::relay(Member& member, bool is_stderr, size_t limit_bytes) {
  Stream& stream = member.streams[is_stderr ? 1 : 0];
  if (stream.relay(output_, member.last_lines, limit_bytes)) last_byte_ = Clock::now();
}

void GroupRun::end_run(int exit_status, const std::string& reason, milliseconds grace) {
  if (book_.is_ending()) return;
  book_.end_run(exit_status, reason);
  kill_at_ = Clock::now() + grace;
  for (const Member& member : members_) {
    signal_member(member, SIGTERM);
    signal_member(member, SIGCONT);
  }
}

void GroupRun::kill_all() {
  kill_at_.reset();
  if (!give_up_at_) give_up_at_ = Clock::now() + kUnkillable;
  for (const Member& member : members_) signal_member(member, SIGKILL);
}

void GroupRun::check_output() {
  if (output_.is_closed()) {
    end_run(kBrokenOutput, "nobody reads the output any more", options_.grace);
  }
  if (const auto error = output_.take_write_error()) {
    if (write_error_.empty()) write_error_ = *error;
    output_.notice(*error);
  }
}

void GroupRun::finish() {
  const auto end = Clock::now() + kOpenPipes;
  while (any_stream_open() && !hurry_ && Clock::now() < end) turn();
  for (const pid_t pid : end_rest()) {
    output_.notice(fmt::format("process {} cannot be killed and is left behind", pid));
  }
  drain();
  if (options_.on_tick) options_.on_tick(control_.block());
  if (book_.exit_status() != 0) output_.end_line();  // for the report that our caller prints
  output_.write_ready();
  check_output();
}

std::vector<pid_t> GroupRun::end_rest() const {
  auto except = scope_.foreign_children();
  except.insert(sweeper_.pid());
  return end_descendants(except);
}

// All writers are dead: what is left in the pipes is little. A slow reader of ours is waited for,
// as by any program that writes, unless a signal has ended the run.
void GroupRun::drain() {
  last_byte_ = Clock::now();
  const auto hurried_end = Clock::now() + std::chrono::milliseconds(200);
  while ((any_stream_open() || !output_.is_empty()) && !output_.is_closed()) {
    const auto now = Clock::now();
    if (hurry_ && now > hurried_end) break;
    if (output_.is_empty() && now - last_byte_ > kOpenPipes) break;
    turn();
  }
  for (Member& member : members_) {
    for (Stream& stream : member.streams) stream.flush(output_, member.last_lines);
  }
}

}  // namespace lockstep::launch
