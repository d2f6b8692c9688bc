#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "src/ledger/ledger.h"

// Tests only: replicas that run the whole step protocol on toy parameters. Who schedules them is
// left to an Environment: fibers with a seed (simulation.h) or threads (ledger_threads_test.cpp).

namespace lockstep::ledger::simulated {

inline constexpr uint32_t kParameterCount = 3;
inline constexpr uint32_t kParameterSize = 4;
inline constexpr uint32_t kValueCount = kParameterCount * kParameterSize;
inline constexpr uint32_t kMostRounds = 64;
using Values = std::array<float, kValueCount>;

/// A way to break the protocol on purpose: the checks must notice each.
enum class Canary {
  kNone,
  kMergesInOtherOrder,  // siblings are added from the far one to the near one
  kPublishesTooEarly,   // the slot goes live before its last parameter is written
  kFreesTooEarly,       // a sibling is freed when the microbatch is claimed
  kMeanTooEarly,        // the mean is written while others still read the last one
  kLoadsTooEarly,       // a joiner does not wait for its donor
  kAsksDoneFirst,       // whether all is done before whether all have arrived
  kForgetsToNotify,     // changes wake nobody
};

/// One run. Everything that happens in it is a pure function of these values.
struct Scenario {
  uint64_t seed = 1;
  uint32_t rank_count = 3;
  uint32_t absent_rank = UINT32_MAX;  // has no founding member
  uint32_t round_count = 5;
  uint32_t most_microbatches = 40;
  uint32_t bucket_count = 2;
  uint32_t values_one_in = 5;  // one round in so many is for values only; 0: none
  uint32_t break_one_in = 0;   // a claimed microbatch is given back; 0: never
  uint32_t death_one_in = 0;   // a replica dies at a named point; 0: only as told below
  uint32_t fault_one_in = 0;   // such a death is one that its work can cause; 0: never
  uint32_t most_deaths = 6;
  uint32_t step_one_in = 0;  // others may run at one access of shared words in so many; 0: never
  uint32_t most_joins = 0;
  uint32_t death_delay = 0;  // turns until a death shows, at most
  bool keeps_survivor = true;
  bool may_steal = true;
  bool shuffles = false;
  bool all_leave = false;                // in round 2 everyone leaves the loop after one microbatch
  uint32_t diverging_rank = UINT32_MAX;  // has other parameters after round 2
  uint32_t poisoned_microbatch = UINT32_MAX;  // of round 2: whoever finishes its leaf dies
  uint32_t poison_deaths = UINT32_MAX;        // so often at most
  bool poison_is_fault = true;
  struct {
    Point point = Point::kClaim;
    uint32_t rank = UINT32_MAX;
    uint32_t visit = 0;  // it dies the visit-th time it is there, counted from 0
  } kill;
  Canary canary = Canary::kNone;

  uint32_t microbatch_count(uint32_t round) const;
  RoundKind kind(uint32_t round) const;
  /// A number below `bound` for this use.
  uint64_t pick(uint64_t bound, uint64_t use, uint64_t detail = 0) const;
};

/// What microbatch m adds: values that cancel, so that the order of additions shows.
struct Leaf {
  Values values{};
  uint32_t present = 0;  // bit p: parameter p took part
  double loss = 0.0;
  double count = 0.0;
};
Leaf leaf_of(const Scenario& scenario, uint32_t round, uint32_t microbatch, const Values& weights);

/// The same run on one replica by the definition of the tree, without a ledger.
struct Step {
  Values mean{};
  uint32_t touched = 0;
  double loss = 0.0;
  double count = 0.0;
  Values weights{};  // after the step
};
std::vector<Step> reference(const Scenario& scenario);  // [round], 0: the start

void update(Values& weights, const float* mean, uint64_t touched);
bool same_bits(const void* left, const void* right, size_t size_bytes);

/// Whether a write to the word at this offset of the ledger's memory puts an older round in the
/// place of a newer one. Records, touched bits, hashes and requests to join may be anything.
bool goes_back(const Layout& layout, uint64_t offset, uint64_t before, uint64_t after);

/// A claim that a test makes did not hold.
struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// The replica saw failure() and gave up, as it should.
struct Failed {};

/// The memory that replicas share.
struct Arena {
  explicit Arena(const Scenario& scenario);

  float* slot(uint32_t index) { return &slots[size_t{index} * kValueCount]; }

  Shape shape;
  Layout layout;
  std::unique_ptr<void, decltype(&std::free)> block;  // zero pages that cost nothing until touched
  std::byte* ledger = nullptr;                        // in `block`, aligned
  std::vector<float> slots;
  Values mean{};
  struct {
    uint32_t round = 0;
    Values weights{};
  } donation;
};

/// What surrounds a replica: its Host, the event to wait for, and a place for checks.
class Environment : public Host {
 public:
  virtual uint64_t event() const = 0;
  /// Returns once event() differs from `seen`.
  virtual void wait(uint64_t seen) = 0;
  /// Others may run now.
  virtual void pause() {}
  virtual bool run_is_over() const = 0;

  virtual void started(const Work&, const Ledger&) {}
  virtual void writes(const Work&) {}
  virtual void reads(uint32_t /*slot*/) {}
  virtual void published() {}
  virtual void gives_back() {}
  virtual void has_state() {}
};

/// One process of the run.
class Replica {
 public:
  Replica(const Scenario& scenario, const std::vector<Step>& expected, Arena& arena, uint32_t rank,
          uint16_t incarnation, bool is_joiner, Environment& environment);

  /// Until all rounds are done. Throws Failed, Broken, or what Host::at() throws.
  void run();

 private:
  void join();
  bool ask_and_load();
  void step();
  void work_or_watch();
  void work();
  bool gives_back(const Work& work);
  void compute(const Work& work);
  void fill_record(const Work& work, const Leaf& leaf);
  void merge_parameter(const Work& work, const Leaf& leaf, uint32_t parameter);
  void wait_until_all_done();
  void reduce();
  void reduce_bucket(uint32_t bucket);
  void commit();
  void fill_step_record();
  void apply();
  void check_step(const CommitRecord& record) const;
  void serve_joiners();
  void free_siblings_early(const Work& work);
  bool decides(uint32_t one_in);
  void expect(bool holds, const std::string& claim) const;

  template <typename Ask>
  void wait_for(const Ask& ask);

  const Scenario& scenario_;
  const std::vector<Step>& expected_;
  Arena& arena_;
  Environment& environment_;
  Ledger ledger_;
  uint32_t rank_;
  uint16_t incarnation_;
  bool is_joiner_;
  bool is_admitted_;
  uint64_t decisions_ = 0;
  Values weights_{};
};

}  // namespace lockstep::ledger::simulated
