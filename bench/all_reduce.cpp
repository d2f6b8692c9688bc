// The sum of one float array per replica, which lies in shared memory from the start:
//   lockstep run -n N -- all_reduce BYTES ...
// Prints on rank 0 the median and the least time of a sum; all replicas start together.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <lockstep/lockstep.h>

namespace {

using Clock = std::chrono::steady_clock;

int rounds_for(int64_t bytes) { return bytes > 1 << 20 ? 30 : bytes > 1 << 16 ? 300 : 2000; }

// Short sums are timed in a row: each waits for all replicas, while a start together is not exact
// to a fraction of a microsecond.
int sums_in_a_row(int64_t bytes) { return bytes > 1 << 16 ? 1 : 50; }

void time_size(const lockstep::Group& group, int64_t bytes) {
  const int64_t elements = std::max<int64_t>(1, bytes / 4);
  lockstep::AllReduce all_reduce(group, elements);
  lockstep::AllReduce barrier(group, 1);
  for (int i = 0; i < 2; ++i) {  // inputs may alternate
    all_reduce.input().fill_(static_cast<double>(group.rank() + 1));
    all_reduce.sum();
  }
  std::vector<double> microseconds;
  const int in_a_row = sums_in_a_row(bytes);
  for (int round = 0; round < rounds_for(bytes); ++round) {
    barrier.sum();
    const auto start = Clock::now();
    for (int i = 1; i < in_a_row; ++i) all_reduce.sum();
    const torch::Tensor& sum = all_reduce.sum();
    const std::chrono::duration<double, std::micro> taken = Clock::now() - start;
    microseconds.push_back(taken.count() / in_a_row);
    const double expected = group.size() * (group.size() + 1) / 2.0;
    if (round % 100 == 0 && sum[elements - 1].item<double>() != expected) {
      std::fprintf(stderr, "wrong sum\n");
      std::exit(1);
    }
  }
  std::sort(microseconds.begin(), microseconds.end());
  if (group.rank() != 0) return;
  std::printf("%lld bytes median %.2f us min %.2f us\n", static_cast<long long>(bytes),
              microseconds[microseconds.size() / 2], microseconds.front());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const auto group = lockstep::Group::from_environment();
  for (int i = 1; i < argc; ++i) time_size(group, std::atoll(argv[i]));
}
