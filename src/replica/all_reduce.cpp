#include "lockstep/all_reduce.h"

#include <array>

#include "lockstep/error.h"
#include "src/exchange/shared_sum.h"
#include "src/replica/group_state.h"

namespace lockstep {
namespace {

torch::Tensor view(const float* data, int64_t element_count) {
  return torch::from_blob(const_cast<float*>(data), {element_count}, torch::kFloat32);
}

}  // namespace

struct AllReduce::State {
  State(const Group& of_group, int64_t size);

  void wait(const std::function<bool()>& ready);
  std::vector<uint32_t> dead_among(const std::vector<uint32_t>& ranks) const;

  std::shared_ptr<internal::GroupState> group;
  int64_t element_count;
  exchange::Mapping mapping;
  std::optional<exchange::SharedSum> shared;
  std::array<torch::Tensor, 2> inputs;  // used in turn; the same place twice for long arrays
  size_t next_input = 0;
  torch::Tensor result;
};

AllReduce::State::State(const Group& of_group, int64_t size)
    : group(of_group.state()), element_count(size) {
  if (size < 1) {
    throw Error(ErrorCode::kUsage,
                "AllReduce of " + std::to_string(size) + " elements: expected at least one");
  }
  const auto elements = static_cast<uint64_t>(size);
  const uint64_t bytes = exchange::SharedSum::bytes_needed(group->size(), elements);
  const auto memory = group->arena(group->next_model(), bytes, [](exchange::Descriptor&) {});
  if (exchange::size_of_shared_memory(memory) != bytes) {
    throw Error(ErrorCode::kUsage, "AllReduce of " + std::to_string(size) + " elements on rank " +
                                       std::to_string(group->rank()) +
                                       ": another replica made it with another number, or made "
                                       "models and AllReduces in another order");
  }
  mapping = exchange::Mapping(memory, 0, bytes, exchange::Mapping::Kind::kShared);
  const bool has_cores = group->has_cores();
  shared.emplace(mapping.data(), group->rank(), group->size(), elements, has_cores, group->event(),
                 [this](const std::function<bool()>& ready) { wait(ready); });
}

std::vector<uint32_t> AllReduce::State::dead_among(const std::vector<uint32_t>& ranks) const {
  std::vector<uint32_t> dead;
  for (const uint32_t rank : ranks) {
    const auto incarnation = static_cast<uint16_t>(group->control().seat[rank].load());
    if (group->has_ended(incarnation)) dead.push_back(rank);
  }
  return dead;
}

void AllReduce::State::wait(const std::function<bool()>& ready) {
  // Looked at in this order: what the dead have done before counts.
  const auto is_over = [&] { return !dead_among(shared->ranks_behind()).empty(); };
  group->wait(
      "the other replicas to come to AllReduce::sum()", [&] { return ready() || is_over(); },
      [this] { return shared->ranks_behind(); });
  if (ready()) return;
  throw Error(ErrorCode::kPeer, "rank " + std::to_string(group->rank()) + ": rank " +
                                    std::to_string(dead_among(shared->ranks_behind()).front()) +
                                    " died before its part of an AllReduce::sum(): the sum is "
                                    "lost. (Gradients survive this, see DistributedDataParallel.)");
}

AllReduce::AllReduce(const Group& group, int64_t element_count)
    : state_(std::make_unique<State>(group, element_count)) {
  State& state = *state_;
  // Where the inputs alternate, the second one is known after a first sum only.
  state.inputs[0] = view(state.shared->input(), element_count);
  sum();
}

AllReduce::~AllReduce() = default;

const torch::Tensor& AllReduce::input() const { return state_->inputs[state_->next_input]; }

const torch::Tensor& AllReduce::sum() {
  State& state = *state_;
  if (state.group->open_loop != nullptr) {
    throw Error(ErrorCode::kUsage,
                "AllReduce::sum() within a loop over microbatches: the replicas go through it "
                "different numbers of times. Call it after average().");
  }
  const float* result = state.shared->sum();
  if (!state.result.defined()) state.result = view(result, state.element_count);
  state.next_input = 1 - state.next_input;
  torch::Tensor& next = state.inputs[state.next_input];
  if (!next.defined()) next = view(state.shared->input(), state.element_count);
  return state.result;
}

}  // namespace lockstep
