#include "lockstep/distributed_data_parallel.h"
#include "src/replica/replica_impl.h"
#include "src/replica/state_hash.h"

namespace lockstep {

using internal::ReplicaImpl;

void Microbatch::record(size_t which, double value) const { replica_->record(which, value); }

const Microbatch& MicrobatchRange::Iterator::operator*() const { return replica_->current(); }

MicrobatchRange::Iterator& MicrobatchRange::Iterator::operator++() {
  replica_->finish_current();
  replica_->advance();
  return *this;
}

bool MicrobatchRange::Iterator::operator==(std::default_sentinel_t) const {
  return replica_->at_end();
}

MicrobatchRange::Iterator MicrobatchRange::begin() {
  replica_->advance();
  return Iterator(replica_.get());
}

MicrobatchRange::~MicrobatchRange() { replica_->leave_loop(); }

DistributedDataParallel::DistributedDataParallel(const Group& group, torch::nn::Module& module,
                                                 DistributedDataParallelOptions options)
    : impl_(std::make_shared<ReplicaImpl>(group, module, options)) {}

MicrobatchRange DistributedDataParallel::microbatches(const Batch& batch) {
  impl_->begin_round(batch);
  return MicrobatchRange(impl_);
}

void DistributedDataParallel::backward_mean(const torch::Tensor& loss, double count) {
  impl_->backward(loss, count, /*is_mean=*/true);
}

void DistributedDataParallel::backward_sum(const torch::Tensor& loss_sum, double count) {
  impl_->backward(loss_sum, count, /*is_mean=*/false);
}

Step DistributedDataParallel::average() { return impl_->average(); }

Evaluation DistributedDataParallel::evaluate(
    uint64_t sample_count, uint64_t microbatch,
    const std::function<EvaluationPart(const std::vector<size_t>&)>& function) {
  return impl_->evaluate(sample_count, microbatch, function);
}

std::string DistributedDataParallel::parameter_hash() {
  return base::to_hex(impl_->parameter_hash());
}

std::string DistributedDataParallel::state_hash(const torch::optim::Optimizer& optimizer) {
  return base::to_hex(impl_->state_hash(optimizer));
}

std::vector<std::pair<std::string, std::string>> DistributedDataParallel::parameter_hashes() const {
  return internal::parameter_hashes(impl_->model());
}

double DistributedDataParallel::drift() const { return impl_->drift(); }

uint64_t DistributedDataParallel::exchange_count() const { return impl_->exchange_count(); }

std::string DistributedDataParallel::memory_plan() const { return impl_->memory_plan(); }

}  // namespace lockstep
