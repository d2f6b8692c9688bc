#include <algorithm>

#include "lockstep/error.h"
#include "src/replica/replica_impl.h"

// Checks instead of belief: settings are compared between the replicas in every step (rule 11), and
// leaves in audited steps (rule 13).

namespace lockstep::internal {

// Settings that differ between replicas would make bits depend on who computed what: each shows its
// own once a round.
void ReplicaImpl::post_context() {
  Arena::Head& head = arena_.head();
  const uint32_t rank = ledger_.rank();
  if (head.context_round[rank].load(std::memory_order_relaxed) == ledger_.round()) return;
  head.context[rank] = context_;
  head.context_round[rank].store(ledger_.round(), std::memory_order_release);
}

void ReplicaImpl::compare_contexts() {
  const Arena::Head& head = arena_.head();
  std::optional<uint32_t> first;
  for (uint32_t rank = 0; rank < ledger_.rank_count(); ++rank) {
    if (head.context_round[rank].load(std::memory_order_acquire) != ledger_.round()) continue;
    if (!first) first = rank;
    const auto found = head.context[*first].difference(head.context[rank]);
    if (!found) continue;
    ledger_.fail(ledger::FailureKind::kOther, UINT32_MAX, rank,
                 found->name + " is " + std::to_string(found->here) + " on rank " +
                     std::to_string(*first) + " and " + std::to_string(found->there) + " on rank " +
                     std::to_string(rank) +
                     ": it decides last bits, so set it alike on all replicas");
    throw_failure();
  }
}

// After its own share a replica computes the microbatch that all others compute too, and repeats
// its first one after another. The queue is worked from its back.
void ReplicaImpl::plan_audit() {
  audit_is_planned_ = true;
  if (!audited_) {  // the others left nothing for this replica to compute
    audit_queue_ = {{0, true}};
    return;
  }
  audit_queue_ = {{*audited_, false}};
  if (*audited_ != 0) {
    audit_queue_.emplace_back(0u, true);
    return;
  }
  std::copy(audited_hashes_.begin(), audited_hashes_.end(), arena_.audit_hashes(group_->rank()));
  const bool computed_others = timings_.microbatches > 1;
  if (!computed_others && ledger_.microbatch_count() > 1) audit_queue_.emplace_back(1u, false);
}

// True: a repetition is open.
bool ReplicaImpl::next_audit() {
  if (!is_audited_) return false;
  if (!audit_is_planned_) plan_audit();
  if (audit_queue_.empty()) return false;
  work_ = ledger::Work{};
  work_.microbatch = audit_queue_.back().first;
  current_.is_audit_ = true;
  sink_.open(GradientSink::Target::kHash, work_, ledger_);
  open_microbatch();
  return true;
}

void ReplicaImpl::finish_audit() {
  const auto [microbatch, is_posted] = audit_queue_.back();
  audit_queue_.pop_back();
  if (is_posted) {
    std::copy(sink_.leaf_hashes().begin(), sink_.leaf_hashes().end(),
              arena_.audit_hashes(group_->rank()));
  }
  if (microbatch == audited_ && !is_posted) {
    for (size_t i = 0; i < audited_hashes_.size(); ++i) {
      if (audited_hashes_[i] == sink_.leaf_hashes()[i]) continue;
      const std::string text =
          "microbatch " + std::to_string(microbatch) +
          " is not a pure function of parameters and "
          "samples: the gradient of " +
          model_.parameters()[i].name +
          " differs on the second computation by the same replica. Look for state that a forward "
          "pass leaves behind (caches, counters, clocks, own random generators)";
      ledger_.fail(ledger::FailureKind::kOther, microbatch, group_->rank(), text);
      throw_failure();
    }
  }
}

void ReplicaImpl::compare_audit_hashes() {
  std::optional<uint32_t> first;
  for (uint32_t rank = 0; rank < group_->size(); ++rank) {
    if (!ledger_.is_living_member(rank) || ledger_.is_joining(rank)) continue;
    // All absent: it left its loop early and posted nothing.
    const uint64_t* hashes = arena_.audit_hashes(rank);
    if (std::all_of(hashes, hashes + model_.parameters().size(),
                    [](uint64_t h) { return h == 0; })) {
      continue;
    }
    if (!first) first = rank;
    for (size_t i = 0; i < model_.parameters().size(); ++i) {
      if (arena_.audit_hashes(rank)[i] == arena_.audit_hashes(*first)[i]) continue;
      ledger_.fail(ledger::FailureKind::kOther, 0, rank,
                   "microbatch 0 gives another gradient of " + model_.parameters()[i].name +
                       " on rank " + std::to_string(rank) + " than on rank " +
                       std::to_string(*first) +
                       ", from equal parameters and samples. Look for "
                       "what differs between the processes: environment, files read in the "
                       "forward pass, the rank itself");
      throw_failure();
    }
  }
}

}  // namespace lockstep::internal
