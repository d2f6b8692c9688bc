#include "src/replica/torch_internals.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace lockstep::internal {
namespace {

struct Hook : torch::autograd::PostAccumulateGradHook {
  explicit Hook(std::function<void(const torch::Tensor&)> call) : function(std::move(call)) {}
  void operator()(const torch::autograd::Variable& variable) override { function(variable); }

  std::function<void(const torch::Tensor&)> function;
};

int64_t read_float_control() {
#if defined(__x86_64__)
  return _mm_getcsr() & 0xffc0u;  // without the sticky exception flags
#else
  return std::fegetround();
#endif
}

}  // namespace

void set_gradient_hook(const torch::Tensor& parameter,
                       std::function<void(const torch::Tensor&)> hook) {
  torch::autograd::impl::set_post_acc_grad_hooks(parameter,
                                                 std::make_unique<Hook>(std::move(hook)));
}

void remove_gradient_hook(const torch::Tensor& parameter) {
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
}

void seed_default_generator(uint32_t seed) {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

void make_deterministic() {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  torch::jit::getProfilingMode() = false;
}

void clear_autocast_cache() { at::autocast::clear_cache(); }

void bump_version(const torch::Tensor& tensor) { torch::autograd::impl::bump_version(tensor); }

bool overlaps_itself(const torch::Tensor& tensor) {
  return at::has_internal_overlap(tensor) == at::MemOverlap::Yes;
}

bool overlap(const torch::Tensor& left, const torch::Tensor& right) {
  const auto status = at::get_overlap_status(left, right);
  return status == at::MemOverlapStatus::Full || status == at::MemOverlapStatus::Partial;
}

ContextWord ContextWord::now() {
  const auto& context = at::globalContext();
  ContextWord word{};
  word.threads = at::get_num_threads();
  word.float_control = read_float_control();
  word.default_dtype = static_cast<int64_t>(c10::get_default_dtype_as_scalartype());
  word.matmul_precision = static_cast<int64_t>(context.float32MatmulPrecision());
  word.attention = (context.userEnabledFlashSDP() ? 1 : 0) |
                   (context.userEnabledMemEfficientSDP() ? 2 : 0) |
                   (context.userEnabledMathSDP() ? 4 : 0);
  word.one_dnn = context.userEnabledMkldnn() ? 1 : 0;
  word.deterministic = context.deterministicAlgorithms() ? 1 : 0;
  word.autocast = (at::autocast::is_autocast_enabled(at::kCPU) ? 1 : 0) |
                  static_cast<int64_t>(at::autocast::get_autocast_dtype(at::kCPU)) << 1;
  return word;
}

std::optional<ContextWord::Difference> ContextWord::difference(const ContextWord& there) const {
  const Difference fields[] = {
      {"the number of threads (torch::set_num_threads)", threads, there.threads},
      {"the floating-point control word (rounding, flush to zero)", float_control,
       there.float_control},
      {"the default dtype", default_dtype, there.default_dtype},
      {"the float32 matmul precision", matmul_precision, there.matmul_precision},
      {"the set of attention back ends", attention, there.attention},
      {"the use of oneDNN", one_dnn, there.one_dnn},
      {"the use of deterministic algorithms", deterministic, there.deterministic},
      {"CPU autocast", autocast, there.autocast},
  };
  for (const Difference& field : fields) {
    if (field.here != field.there) return field;
  }
  return std::nullopt;
}

}  // namespace lockstep::internal
