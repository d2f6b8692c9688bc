#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "src/ledger/ledger.h"
#include "src/replica/arena.h"
#include "src/replica/flat_model.h"

namespace lockstep::internal {

/// Takes gradients from autograd as backward finishes them and merges each with its siblings into
/// the microbatch's slot in one pass, while it is in cache: nothing is zeroed, nothing copied
/// twice.
///
/// A parameter's leaf is the sum of all its firings in the microbatch (rule 4). Parameters known to
/// fire once are taken at their first firing; the others stay in .grad(), where autograd adds their
/// firings, until the microbatch is closed. One that fires again after it was taken spoils the
/// microbatch: it is computed again, and the parameter is left to autograd from then on.
class GradientSink {
 public:
  /// `place` says which microbatch is open, for messages: "microbatch 2 of step 3 on rank 0".
  GradientSink(FlatModel& model, Arena& arena, std::function<std::string()> place);
  ~GradientSink();
  GradientSink(const GradientSink&) = delete;
  GradientSink& operator=(const GradientSink&) = delete;

  enum class Target {
    kSlot,         // merge into work.slot
    kSlotAndHash,  // the same, and hash each leaf
    kHash,         // only hash: a repetition for the audit
  };

  /// Gradients go to `work` from now on; `work` and `ledger` stay alive until close() or abandon().
  void open(Target target, const ledger::Work& work, ledger::Ledger& ledger);
  bool is_open() const { return is_open_; }

  /// While one of these lives, gradients are expected: a count belongs to them. A firing at any
  /// other moment is refused by an Error(kUsage), in the backward pass that it comes from and again
  /// by close().
  class Expected {
   public:
    explicit Expected(GradientSink& sink) : sink_(sink) { sink_.is_expected_ = true; }
    ~Expected() { sink_.is_expected_ = false; }
    Expected(const Expected&) = delete;
    Expected& operator=(const Expected&) = delete;

   private:
    GradientSink& sink_;
  };

  /// Completes the leaf: what fired is merged, what only siblings have is carried over, buffers
  /// that a backward's forward pass changed are added where `had_backward`. False: spoiled, compute
  /// again. Buffers are set back to the step's in any case.
  [[nodiscard]] bool close(bool had_backward);

  /// Drops what has come since open().
  void abandon();

  /// [parameter] hash of the last closed leaf, 0 where absent; for targets that hash.
  const std::vector<uint64_t>& leaf_hashes() const { return leaf_hashes_; }

  /// The buffers' values that every microbatch of the next step starts from.
  void keep_buffers();

 private:
  enum class Firing : uint8_t { kUnknown, kOnce, kMany };

  void fired(size_t index);
  [[noreturn]] void refuse_firing(const Entry& entry);
  void take(size_t index);
  void carry_over(const Entry& entry);
  torch::Tensor leaf_of(const Entry& entry, const torch::Tensor& gradient) const;
  template <typename T>
  bool merge(const Entry& entry, const T* leaf);
  void add_buffers();
  void add_byte_buffer(const Entry& entry, bool changed);
  bool sibling_has(size_t sibling, uint32_t bit) const;
  void set_bit(uint32_t bit);
  void reset();

  FlatModel& model_;
  Arena& arena_;
  std::function<std::string()> place_;
  std::vector<Firing> firing_;   // [parameter]
  std::vector<uint32_t> fired_;  // [parameter] firings in this microbatch
  std::vector<uint64_t> leaf_hashes_;
  std::vector<torch::Tensor> kept_buffers_;  // [buffer]
  bool is_open_ = false;
  bool is_spoiled_ = false;
  std::atomic<bool> is_expected_ = false;  // hooks may run on threads of autograd's own
  std::string stray_firing_;               // what was said about one in this microbatch
  Target target_ = Target::kSlot;
  const ledger::Work* work_ = nullptr;
  ledger::Ledger* ledger_ = nullptr;
};

}  // namespace lockstep::internal
