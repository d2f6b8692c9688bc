#include "src/replica/replica_impl.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/base/random.h"
#include "src/base/system.h"
#include "src/replica/state_hash.h"
#include "src/tree/sum.h"

namespace lockstep::internal {
namespace {

static_assert(kMetricCount == ledger::kMetricCount);

constexpr uint64_t kMicrobatchKey = 0x6d6963726f;  // unrelated streams of random numbers
constexpr uint64_t kBetweenKey = 0x6265747765;
constexpr auto kRelaxed = std::memory_order_relaxed;

double seconds_between(std::chrono::steady_clock::time_point from,
                       std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

ReplicaImpl::ReplicaImpl(const Group& group, torch::nn::Module& module,
                         const DistributedDataParallelOptions& options)
    : group_(group.state()),
      module_(module),
      options_(options),
      model_index_(group_->next_model()),
      model_(module),
      buckets_(cut_into_buckets(model_, options.bucket_bytes, group_->size())),
      shared_arena_(*group_, model_, buckets_, model_index_, Arena::Sharing::kGroup),
      own_arena_(options.averaging ? std::nullopt
                                   : std::make_optional<Arena>(*group_, model_, buckets_,
                                                               model_index_, Arena::Sharing::kOwn)),
      arena_(own_arena_ ? *own_arena_ : shared_arena_),
      ledger_(arena_.ledger(), arena_.shape(), options.averaging ? group_->rank() : 0,
              group_->incarnation(), *group_),
      sink_(model_, arena_,
            [this] {
              return "microbatch " + std::to_string(current_.index_) + " of step " +
                     std::to_string(step_number_) + " on rank " + std::to_string(group_->rank());
            }),
      reducer_(model_, arena_, buckets_),
      drift_meter_(*group_, model_, model_index_) {
  if (options.shuffle_claims != 0) {
    ledger_.shuffle_claims(options.shuffle_claims + group_->rank());
  }
  current_.replica_ = this;
  broadcast_values();
  sink_.keep_buffers();
  grad_views_ = grad_views();
}

std::vector<torch::Tensor> ReplicaImpl::grad_views() const {
  std::vector<torch::Tensor> views;
  for (const Entry& entry : model_.parameters()) {
    const auto dtype = entry.tensor.scalar_type();
    if (dtype != torch::kFloat32 && dtype != torch::kFloat64) {
      views.emplace_back();
      continue;
    }
    std::byte* plane = arena_.own_mean() + model_.plane_offset_bytes(entry.plane);
    void* data = plane + static_cast<uint64_t>(entry.offset) * entry.tensor.element_size();
    views.push_back(torch::from_blob(data, entry.tensor.sizes(), entry.tensor.strides(),
                                     torch::TensorOptions().dtype(dtype)));
  }
  return views;
}

ReplicaImpl::~ReplicaImpl() {
  // The last update of a stock optimizer, or one that was left out: nothing waits for it any more.
  if (has_pending_mean_) note_copy(model_.parameter_hash());
  // The views of the mean end with the arena.
  for (const Entry& entry : model_.parameters()) entry.tensor.mutable_grad() = torch::Tensor();
  if (group_->open_loop == this) group_->open_loop = nullptr;
}

void ReplicaImpl::check_not_in_loop(const char* call) const {
  if (group_->open_loop == nullptr) return;
  throw Error(ErrorCode::kUsage, std::string(call) + " was called inside a loop over microbatches" +
                                     (group_->open_loop == this ? "" : " of another model") +
                                     ": finish that loop first; the other replicas may be at "
                                     "another microbatch now");
}

void ReplicaImpl::throw_failure() {
  const ledger::Failure& failure = *ledger_.failure();
  const std::string where = "step " + std::to_string(step_number_);
  switch (static_cast<ledger::FailureKind>(failure.kind.load())) {
    case ledger::FailureKind::kPoisonousMicrobatch: {
      std::string samples;
      for (size_t index : batch_ ? batch_->indices(failure.microbatch) : std::vector<size_t>{}) {
        if (samples.size() < 60) samples += (samples.empty() ? "" : ", ") + std::to_string(index);
      }
      throw Error(ErrorCode::kData,
                  "microbatch " + std::to_string(failure.microbatch) + " of " + where +
                      " (samples " + samples +
                      ") made two replicas fail one after the other; the "
                      "same computation would end any replica, so the run ends. See their last "
                      "lines for the cause");
    }
    case ledger::FailureKind::kUnclaimed:
      throw Error(ErrorCode::kUsage,
                  "all replicas left the loop over microbatches of " + where +
                      " before the batch was computed (break or an exception), and call average()");
    case ledger::FailureKind::kDiverged: {
      const DriftMeter::Drift drift = drift_meter_.measure();
      throw Error(ErrorCode::kDiverged,
                  "the copies of the model differ after " +
                      std::string(step_number_ > 1 ? "step " + std::to_string(step_number_ - 1)
                                                   : "the start") +
                      ": rank " + std::to_string(failure.other_rank) +
                      " against the lowest rank, " + "first in parameter " +
                      (drift.parameter.empty() ? "?" : drift.parameter) + ", by at most " +
                      std::to_string(drift.largest) +
                      ". Something changed parameters or gradients on one replica only: an update "
                      "under `if (rank == 0)`, a load, random numbers outside the microbatches");
    }
    default:
      throw Error(ErrorCode::kDiverged, std::string(failure.text) + " (" + where + ", rank " +
                                            std::to_string(failure.rank) + ")");
  }
}

// -- Start ----------------------------------------------------------------------------------------

// Every copy starts from the values of the lowest rank.
void ReplicaImpl::broadcast_values() {
  if (group_->size() == 1) return;
  const torch::NoGradGuard no_grad;
  Arena::Head& head = shared_arena_.head();
  std::vector<torch::Tensor> tensors = model_.flats();
  for (const Entry& entry : model_.buffers()) tensors.push_back(entry.tensor);
  const auto lowest = [this] { return group_->living_ranks().front(); };
  group_->wait(
      "the first values of the model",
      [&] {
        shared_arena_.check_not_refused();
        if (head.values_from.load(std::memory_order_acquire) != 0) return true;
        return lowest() == group_->rank();
      },
      [&] { return std::vector<uint32_t>{lowest()}; });
  std::byte* at = shared_arena_.mean();
  const auto next = [&at](const torch::Tensor& tensor) { at += (tensor.nbytes() + 63) / 64 * 64; };
  if (head.values_from.load(std::memory_order_acquire) == 0) {
    for (const auto& tensor : tensors) {
      const auto whole = tensor.contiguous();
      std::memcpy(at, whole.data_ptr(), whole.nbytes());
      next(whole);
    }
    head.values_from.store(group_->rank() + 1, std::memory_order_release);
  } else {
    for (const auto& tensor : tensors) {
      tensor.copy_(torch::from_blob(at, tensor.sizes(), tensor.options()));
      next(tensor);
    }
  }
  head.ready[group_->rank()].store(group_->incarnation(), std::memory_order_release);
  group_->changed();
  const auto missing = [&] {
    std::vector<uint32_t> ranks;
    for (uint32_t rank : group_->living_ranks()) {
      if (head.ready[rank].load(std::memory_order_acquire) == 0) ranks.push_back(rank);
    }
    return ranks;
  };
  group_->wait(
      "all replicas to wrap the model",
      [&] {
        const bool all_are_there = missing().empty();
        shared_arena_.check_not_refused();  // after it: who refuses says so before it ends
        return all_are_there;
      },
      missing);
}

void ReplicaImpl::reserve_slots(uint32_t microbatch_count) {
  if (microbatch_count <= reserved_for_) return;
  reserved_for_ = microbatch_count;
  const uint32_t members = std::max(1u, ledger_.living_member_count());
  const ledger::SlotBudget budget = ledger::slot_budget(microbatch_count, members);
  const uint64_t wanted = (budget.owned + 1) * model_.slot_bytes();
  const base::MemoryBudget memory = base::memory_budget();
  if (wanted > memory.available_bytes) {
    throw Error(ErrorCode::kEnvironment,
                "rank " + std::to_string(group_->rank()) + " needs " + base::format_bytes(wanted) +
                    " for " + std::to_string(budget.owned) + " partial sums and the mean, but " +
                    base::format_bytes(memory.available_bytes) + " are left (" + memory.limited_by +
                    "): use fewer replicas, or a larger microbatch");
  }
  const uint32_t first = ledger_.rank() * ledger::kSlotsPerSeat;
  for (uint32_t i = 0; i < budget.owned; ++i) arena_.populate_slot(first + i);
  if (ledger_.lowest_living_member() == ledger_.rank()) arena_.populate_mean();
  ledger_.allow_stealing(budget.stolen * model_.slot_bytes() < memory.available_bytes / 2);
}

std::string ReplicaImpl::memory_plan() const {
  const ledger::SlotBudget budget =
      ledger::slot_budget(std::max(1u, reserved_for_), ledger_.living_member_count());
  return std::to_string(budget.owned) + " partial sums of " +
         base::format_bytes(model_.slot_bytes()) + " a replica, up to " +
         std::to_string(budget.stolen) + " more while stealing, " +
         std::to_string(buckets_.size()) + " buckets";
}

// -- The loop over microbatches -------------------------------------------------------------------

void ReplicaImpl::begin_round(const Batch& batch) {
  check_not_in_loop("microbatches()");
  if (round_open_) {
    throw Error(ErrorCode::kUsage, "microbatches() was called twice without average() in between");
  }
  settle();
  model_.check_views();
  batch_ = batch;
  uint32_t count = batch.microbatch_count();
  first_microbatch_ = 0;
  if (!options_.averaging) {
    const uint64_t size = group_->size();
    const auto first = static_cast<uint32_t>(count * uint64_t{group_->rank()} / size);
    const auto end = static_cast<uint32_t>(count * (uint64_t{group_->rank()} + 1) / size);
    if (first == end) {
      throw Error(ErrorCode::kUsage,
                  "with averaging off each replica needs a microbatch of its own, "
                  "but step " +
                      std::to_string(batch.step() + 1) + " has " + std::to_string(count) + " for " +
                      std::to_string(size));
    }
    first_microbatch_ = first;
    count = end - first;
  }
  seed_ = batch.seed();
  seed_step_stride_ = batch.microbatch_stride();
  step_number_ = batch.step() + 1;
  drop_old_means();
  reserve_slots(count);
  ledger_.enter(count, ledger::RoundKind::kGradient);
  timings_ = {};
  round_start_ = mark_ = Clock::now();
  in_loop_ = round_open_ = true;
  at_end_ = false;
  group_->open_loop = this;
  group_->set_position(step_number_, UINT32_MAX);
  is_audited_ = options_.averaging &&
                ((batch.step() == 0 && options_.audit_first_step) ||
                 (options_.audit_interval != 0 && batch.step() % options_.audit_interval == 0));
  audited_.reset();
  audit_queue_.clear();
  audit_is_planned_ = false;
  if (is_audited_) std::fill_n(arena_.audit_hashes(ledger_.rank()), model_.parameters().size(), 0);
}

void ReplicaImpl::advance() {
  ledger::Turn turn = ledger::Turn::kWait;
  const auto before = Clock::now();
  group_->wait(
      "microbatches that other replicas compute",
      [&] {
        turn = ledger_.next(work_);
        return turn != ledger::Turn::kWait;
      },
      [this] { return members_behind(); });
  timings_.wait += seconds_between(before, Clock::now());
  mark_ = Clock::now();
  if (turn == ledger::Turn::kFailed) throw_failure();
  current_.is_audit_ = false;
  if (turn == ledger::Turn::kYours) {
    timings_.stolen += work_.is_stolen;
    GradientSink::Target target = GradientSink::Target::kSlot;
    if (is_audited_ && !audited_) {
      audited_ = work_.microbatch;
      target = GradientSink::Target::kSlotAndHash;
    }
    sink_.open(target, work_, ledger_);
    open_microbatch();
    return;
  }
  if (next_audit()) return;
  at_end_ = true;
  in_loop_ = false;
  group_->open_loop = nullptr;
  ledger_.arrive();
}

// Living members that still compute, for the message of a wait that takes too long.
std::vector<uint32_t> ReplicaImpl::members_behind() const {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < group_->size(); ++rank) {
    if (rank != group_->rank() && options_.averaging && ledger_.is_living_member(rank) &&
        ledger_.applied_round(rank) + 1 <= ledger_.round()) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

void ReplicaImpl::open_microbatch() {
  const uint32_t m = first_microbatch_ + work_.microbatch;
  group_->set_position(step_number_, m);
  current_.index_ = m;
  current_.indices_ = batch_->indices(m);
  backward_calls_ = 0;
  loss_ = count_ = 0;
  metrics_.fill(0.0);
  is_open_ = true;
  clear_autocast_cache();
  seed_microbatch(m);
  context_ = ContextWord::now();
  post_context();
}

// One bijection per wrapped model, of a counter over steps and microbatches: no two microbatches of
// a run share a seed, and none depends on who computes what.
void ReplicaImpl::seed_microbatch(uint32_t microbatch) {
  const uint64_t counter = (step_number_ - 1) * seed_step_stride_ + microbatch;
  seed_default_generator(base::permute_32(base::mix_key(seed_, kMicrobatchKey, model_index_),
                                          static_cast<uint32_t>(counter)));
}

void ReplicaImpl::seed_between() {
  seed_default_generator(base::permute_32(base::mix_key(seed_, kBetweenKey, model_index_),
                                          static_cast<uint32_t>(step_number_)));
}

void ReplicaImpl::record(size_t which, double value) {
  if (which >= kMetricCount) {
    throw Error(ErrorCode::kUsage, "metric " + std::to_string(which) + ": there are " +
                                       std::to_string(kMetricCount) + ", counted from 0");
  }
  metrics_[which] = value;
}

void ReplicaImpl::backward(const torch::Tensor& loss, double count, bool is_mean) {
  const char* call = is_mean ? "backward_mean()" : "backward_sum()";
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kUsage,
                std::string(call) + " in step " + std::to_string(step_number_) + ": " + why);
  };
  if (!is_open_)
    refuse("no microbatch is open; call it inside the loop over ddp.microbatches(batch)");
  if (!(count >= 0) || std::isinf(count)) {
    refuse("count " + std::to_string(count) + "; a finite number of 0 or more is expected");
  }
  if (!loss.defined() || loss.numel() != 1) refuse("the loss must be one number");
  ++backward_calls_;
  if (count == 0) return;  // 0/0 of a mean over nothing must not reach the gradients
  count_ += count;
  const torch::Tensor total = is_mean ? loss * count : loss;
  loss_ += is_mean ? loss.item<double>() * count : loss.item<double>();
  const GradientSink::Expected expected(sink_);
  total.backward();
}

void ReplicaImpl::finish_current() {
  if (!is_open_) return;
  if (const auto changed = context_.difference(ContextWord::now())) {
    throw Error(ErrorCode::kUsage, "during microbatch " + std::to_string(current_.index_) +
                                       " of step " + std::to_string(step_number_) + " on rank " +
                                       std::to_string(group_->rank()) + ", " + changed->name +
                                       " was " + std::to_string(changed->here) + " and became " +
                                       std::to_string(changed->there) +
                                       ": it decides last bits, so it must stay the same");
  }
  is_open_ = false;
  const bool is_repetition = current_.is_audit_;
  const bool complete = sink_.close(backward_calls_ != 0 && !is_repetition);
  if (is_repetition) {
    if (complete)
      finish_audit();  // else the same repetition once more, now knowing who fires again
  } else if (!complete) {
    ledger_.give_back(work_);  // a parameter fired again: compute it once more, now knowing
    if (audited_ == work_.microbatch) audited_.reset();
  } else {
    if (audited_ == work_.microbatch) audited_hashes_ = sink_.leaf_hashes();
    ledger::MicrobatchRecord& record = ledger_.record(work_.microbatch);
    record.loss.store(loss_, kRelaxed);
    record.count.store(count_, kRelaxed);
    record.flags.store(backward_calls_ != 0, kRelaxed);
    for (size_t i = 0; i < kMetricCount; ++i) record.metrics[i].store(metrics_[i], kRelaxed);
    group_->at(ledger::Point::kLeafDone);
    ledger_.publish(work_);
    ++timings_.microbatches;
  }
  group_->set_position(step_number_, UINT32_MAX);
  timings_.compute += seconds_between(mark_, Clock::now());
}

void ReplicaImpl::leave_loop() noexcept {
  if (!in_loop_) return;
  in_loop_ = false;
  at_end_ = true;
  group_->open_loop = nullptr;
  if (is_open_ || sink_.is_open()) {
    const bool is_repetition = current_.is_audit_;
    is_open_ = false;
    sink_.abandon();
    if (!is_repetition) ledger_.give_back(work_);
  }
  ledger_.arrive();
}

// -- The step -------------------------------------------------------------------------------------

Step ReplicaImpl::average() {
  check_not_in_loop("average()");
  if (!round_open_) {
    throw Error(ErrorCode::kUsage,
                "average() was called without a loop over ddp.microbatches(batch) before it");
  }
  wait_for_batch();
  reduce_buckets();
  Step step = commit();
  round_open_ = false;
  ++exchange_count_;
  give_mean(ledger_.round());
  seed_between();
  step.timings = timings_;
  step.timings.total = seconds_between(round_start_, Clock::now());
  return step;
}

void ReplicaImpl::wait_for_batch() {
  const auto before = Clock::now();
  group_->wait(
      "the rest of the batch",
      [this] {
        if (ledger_.failure() != nullptr) throw_failure();
        // Asked first: who arrives after this look may have computed the rest before.
        const bool nobody_computes = ledger_.all_arrived();
        if (ledger_.all_done()) return true;
        if (nobody_computes) ledger_.fail(ledger::FailureKind::kUnclaimed, UINT32_MAX, 0, "");
        return false;
      },
      [this] { return members_behind(); });
  group_->wait(
      "the other replicas' last update", [this] { return ledger_.all_applied_last(); },
      [this] { return members_behind(); });
  timings_.wait += seconds_between(before, Clock::now());
}

void ReplicaImpl::sum_records(ledger::CommitRecord& record, uint32_t& backward_count) {
  record.loss = record.count = 0;
  std::fill_n(record.metrics, kMetricCount, 0.0);
  backward_count = 0;
  for (uint32_t m = 0; m < ledger_.microbatch_count(); ++m) {
    const ledger::MicrobatchRecord& part = ledger_.record(m);
    record.loss += part.loss.load(kRelaxed);
    record.count += part.count.load(kRelaxed);
    backward_count += static_cast<uint32_t>(part.flags.load(kRelaxed) & 1);
    for (size_t i = 0; i < kMetricCount; ++i) record.metrics[i] += part.metrics[i].load(kRelaxed);
  }
}

void ReplicaImpl::reduce_buckets() {
  const auto start = Clock::now();
  ledger::CommitRecord sums{};
  uint32_t backward_count = 0;
  sum_records(sums, backward_count);
  if (sums.count <= 0 && !ledger_.is_committed()) {  // else these may be the next step's counts
    throw Error(ErrorCode::kData, "step " + std::to_string(step_number_) +
                                      ": the counts of all microbatches add up to 0, so there is "
                                      "nothing to divide by (no backward, or every target masked)");
  }
  // Without us the others may finish the step, commit it and use the slots again at any moment: but
  // not while we hold a bucket.
  const bool started = reducer_.start(ledger_, sums.count, std::max(1u, backward_count));
  LOCKSTEP_CHECK(started || ledger_.is_committed(), started, ledger_.round());
  ledger::Turn turn = ledger::Turn::kDone;
  double waited = 0;
  for (;;) {
    uint32_t bucket = 0;
    const auto before = Clock::now();
    group_->wait(
        "buckets that other replicas reduce",
        [&] {
          if (ledger_.is_committed()) {
            turn = ledger::Turn::kDone;
          } else {
            turn = ledger_.next_bucket(bucket);
          }
          return turn != ledger::Turn::kWait;
        },
        [this] { return members_behind(); });
    waited += seconds_between(before, Clock::now());
    if (turn == ledger::Turn::kFailed) throw_failure();
    if (turn == ledger::Turn::kDone) break;
    reducer_.reduce(bucket);
    timings_.bytes_reduced += reducer_.bytes_of(bucket);
    ledger_.bucket_reduced(bucket);
  }
  timings_.wait += waited;
  timings_.reduce += seconds_between(start, Clock::now()) - waited;
}

void ReplicaImpl::write_record() {
  ledger::CommitRecord& record = ledger_.record_of(ledger_.round());
  uint32_t backward_count = 0;
  sum_records(record, backward_count);
  record.square = reducer_.sum_of_squares();
  const auto words = ledger_.step_touched(ledger_.round());
  for (size_t i = 0; i < words.size(); ++i) words[i].store(reducer_.touched()[i], kRelaxed);
}

Step ReplicaImpl::commit() {
  const auto before = Clock::now();
  ledger::Turn turn = ledger::Turn::kWait;
  group_->wait(
      "the commit of the step",
      [&] {
        if (is_audited_ && !ledger_.is_committed() && !ledger_.all_arrived()) return false;
        turn = ledger_.claim_commit(options_.averaging);
        return turn != ledger::Turn::kWait;
      },
      [this] { return members_behind(); });
  if (turn == ledger::Turn::kFailed) throw_failure();
  if (turn == ledger::Turn::kYours) {
    compare_contexts();
    if (is_audited_) compare_audit_hashes();
    write_record();
    ledger_.commit();
  }
  timings_.wait += seconds_between(before, Clock::now());
  const ledger::CommitRecord& record = ledger_.record_of(ledger_.round());
  Step step;
  step.number = step_number_;
  step.count = record.count;
  step.loss = record.loss / record.count;
  step.gradient_norm = last_norm_ = std::sqrt(record.square);
  std::copy_n(record.metrics, kMetricCount, step.metrics.begin());
  step.members = options_.averaging ? record.member_count : group_->size();
  return step;
}

bool ReplicaImpl::step_has(uint32_t round, uint32_t bit) const {
  return (ledger_.step_touched(round)[bit / 64].load(kRelaxed) >> (bit % 64) & 1) != 0;
}

// Every touched parameter's .grad() becomes this replica's own view of the mean; others stay
// undefined, as on one device.
void ReplicaImpl::give_mean(uint32_t round) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < model_.parameters().size(); ++i) {
    const Entry& entry = model_.parameters()[i];
    if (!step_has(round, entry.bit)) continue;
    if (grad_views_[i].defined()) {
      entry.tensor.mutable_grad() = grad_views_[i];
      continue;
    }
    // Half precision: the mean is kept in float and rounded once more.
    auto* data = reinterpret_cast<float*>(arena_.mean() + model_.plane_offset_bytes(entry.plane));
    const auto mean = torch::from_blob(data + entry.offset, entry.tensor.sizes(),
                                       entry.tensor.strides(), torch::kFloat32);
    entry.tensor.mutable_grad() = mean.to(entry.tensor.scalar_type());
  }
  has_pending_mean_ = true;
  applied_hash_.reset();
  set_buffers(round);
}

void ReplicaImpl::set_buffers(uint32_t round) {
  if (model_.buffers().empty()) return;
  for (const Entry& entry : model_.buffers()) {
    if (!step_has(round, entry.bit) || !step_has(round, entry.changed_bit)) continue;
    std::byte* plane = arena_.mean() + model_.plane_offset_bytes(entry.plane);
    if (entry.plane == Plane::kBuffers) {
      auto* data = reinterpret_cast<double*>(plane) + entry.offset;
      entry.tensor.copy_(torch::from_blob(data, entry.tensor.sizes(), torch::kFloat64));
    } else {
      std::byte* data = plane + entry.offset;
      entry.tensor.copy_(torch::from_blob(data, entry.tensor.sizes(), entry.tensor.options()));
    }
  }
  sink_.keep_buffers();
}

// What user code wrote into its view of the last mean (clipping, noise) stayed on private pages:
// they are given up, or the next mean would not show through.
void ReplicaImpl::drop_old_means() {
  for (const Entry& entry : model_.parameters()) entry.tensor.mutable_grad() = torch::Tensor();
  arena_.discard_private_pages();
}

void ReplicaImpl::begin_update() {
  check_not_in_loop("the optimizer's step()");
  if (!has_pending_mean_) {
    throw Error(ErrorCode::kUsage,
                "the optimizer's step() was called without a new mean: call it once after each "
                "average()");
  }
}

bool ReplicaImpl::is_own_mean(const Entry& entry, const torch::Tensor& gradient) const {
  if (entry.tensor.scalar_type() != torch::kFloat32 && entry.plane != Plane::kDouble) return false;
  const std::byte* plane = arena_.own_mean() + model_.plane_offset_bytes(entry.plane);
  return gradient.layout() == torch::kStrided && gradient.strides() == entry.tensor.strides() &&
         gradient.const_data_ptr() ==
             plane + static_cast<uint64_t>(entry.offset) * entry.tensor.element_size();
}

// float32 parameters come first in the float plane, float64 are alone in theirs: there a place in
// the flat tensor and in the plane are the same.
torch::Tensor ReplicaImpl::own_mean_stretch(size_t flat, int64_t begin, int64_t size) const {
  const torch::Tensor& tensor = model_.flats()[flat];
  std::byte* plane = arena_.own_mean() + model_.plane_offset_bytes(plane_of(tensor.scalar_type()));
  return torch::from_blob(plane + static_cast<uint64_t>(begin) * tensor.element_size(), {size},
                          tensor.options());
}

void ReplicaImpl::mark_applied(const base::Hash128& parameter_hash) {
  if (!has_pending_mean_) return;
  has_pending_mean_ = false;
  applied_hash_ = parameter_hash;
  if (!options_.averaging) last_drift_ = drift_meter_.measure().largest;
  note_copy(parameter_hash);
  ledger_.set_applied(parameter_hash);
}

// For the launcher, which compares the copies when all have ended.
void ReplicaImpl::note_copy(const base::Hash128& parameter_hash) {
  if (options_.averaging) group_->note_copy(model_index_, parameter_hash);
}

void ReplicaImpl::settle() {
  clear_autocast_cache();
  if (has_pending_mean_) mark_applied(model_.parameter_hash());
}

base::Hash128 ReplicaImpl::parameter_hash() {
  if (applied_hash_ && !has_pending_mean_) return *applied_hash_;
  return model_.parameter_hash();
}

base::Hash128 ReplicaImpl::state_hash(const torch::optim::Optimizer& optimizer) const {
  return internal::state_hash(model_, optimizer);
}

}  // namespace lockstep::internal
