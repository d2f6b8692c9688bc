#include "src/exchange/shared_sum.h"

#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <tuple>

#include <gtest/gtest.h>

namespace lockstep::exchange {
namespace {

struct SharedMemory {
  explicit SharedMemory(uint64_t bytes)
      : size(bytes),
        data(static_cast<std::byte*>(
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedMemory() { ::munmap(data, size); }
  uint64_t size;
  std::byte* data;
};

// Values of rank `rank` in call `call`: they cancel, so that the order of the sum shows.
float value_of(uint32_t rank, uint64_t call, uint64_t i) {
  const float large = rank == 0 ? 1e8F : rank == 2 ? -1e8F : 0.0F;
  return large + static_cast<float>((i * 7 + rank * 13 + call * 5) % 101) * 0.37F;
}

// What one thread alone computes: neighbours are added, then their sums.
float expected_sum(uint32_t rank_count, uint64_t call, uint64_t i) {
  std::vector<float> level;
  for (uint32_t rank = 0; rank < rank_count; ++rank) level.push_back(value_of(rank, call, i));
  while (level.size() > 1) {
    std::vector<float> next;
    for (size_t k = 0; k + 1 < level.size(); k += 2) next.push_back(level[k] + level[k + 1]);
    if (level.size() % 2 == 1) next.push_back(level.back());
    level = next;
  }
  return level.front();
}

bool same_bits(float left, float right) { return std::memcmp(&left, &right, sizeof left) == 0; }

struct Group {
  Group(uint32_t count, uint64_t elements, bool cores)
      : rank_count(count),
        element_count(elements),
        has_cores(cores),
        memory(SharedSum::bytes_needed(count, elements)) {}

  void run(uint32_t rank, uint64_t calls, uint64_t& wrong) {
    Event event(&words, rank, 0);
    const auto wait = [&](const std::function<bool()>& ready) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      for (;;) {
        const uint32_t seen = event.value();
        if (ready()) return;
        ASSERT_LT(std::chrono::steady_clock::now(), deadline);
        event.wait(seen, 1000, ready);
      }
    };
    SharedSum shared(memory.data, rank, rank_count, element_count, has_cores, event, wait);
    for (uint64_t call = 1; call <= calls; ++call) {
      float* input = shared.input();
      for (uint64_t i = 0; i < element_count; ++i) input[i] = value_of(rank, call, i);
      const float* sum = shared.sum();
      for (uint64_t i = 0; i < element_count; ++i) {
        if (!same_bits(sum[i], expected_sum(rank_count, call, i))) ++wrong;
      }
    }
  }

  uint64_t wrong_after(uint64_t calls) {
    std::vector<uint64_t> wrong(rank_count, 0);
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < rank_count; ++rank) {
      threads.emplace_back([&, rank] { run(rank, calls, wrong[rank]); });
    }
    uint64_t total = 0;
    for (uint32_t rank = 0; rank < rank_count; ++rank) {
      threads[rank].join();
      total += wrong[rank];
    }
    return total;
  }

  uint32_t rank_count;
  uint64_t element_count;
  bool has_cores;
  SharedMemory memory;
  EventWords words{};
};

class SharedSumOf : public ::testing::TestWithParam<std::tuple<uint32_t, uint64_t>> {};

TEST_P(SharedSumOf, GivesEveryRankTheBitsOfOneThread) {
  const auto [ranks, elements] = GetParam();
  const uint64_t calls = elements > 20000 ? 2 : 10;
  for (const bool has_cores : {true, false}) {
    Group group(ranks, elements, has_cores);
    EXPECT_EQ(group.wrong_after(calls), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(RanksAndSizes, SharedSumOf,
                         ::testing::Combine(::testing::Values(1, 2, 3, 5, 8),
                                            ::testing::Values(0, 1, 255, 1025, 8192, 8193, 70001)));

TEST(SharedSum, OrderOfTheSumShowsInTheBits) {
  // Else the test above could not fail: ((a+b)+(c+d)) and (((a+b)+c)+d) must differ somewhere.
  uint64_t different = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    float in_a_row = value_of(0, 1, i);
    for (uint32_t rank = 1; rank < 5; ++rank) in_a_row += value_of(rank, 1, i);
    if (!same_bits(in_a_row, expected_sum(5, 1, i))) ++different;
  }
  EXPECT_GT(different, 100u);
}

TEST(SharedSum, WaitsForARankThatComesLate) {
  Group group(2, 100, true);
  uint64_t wrong[2] = {0, 0};
  std::thread early([&] { group.run(0, 2, wrong[0]); });
  // Long enough for the early one to have gone to sleep, in most runs.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::thread late([&] { group.run(1, 2, wrong[1]); });
  early.join();
  late.join();
  EXPECT_EQ(wrong[0] + wrong[1], 0u);
}

TEST(SharedSum, NamesTheRanksBehindAndPassesOnWhatTheWaitThrows) {
  SharedMemory memory(SharedSum::bytes_needed(3, 10));
  EventWords words{};
  Event event(&words, 1, 0);
  struct Lost {};
  SharedSum shared(memory.data, 1, 3, 10, true, event, [](const std::function<bool()>& ready) {
    if (!ready()) throw Lost();
  });
  EXPECT_THROW(shared.sum(), Lost);
  EXPECT_EQ(shared.ranks_behind(), (std::vector<uint32_t>{0, 2}));
}

}  // namespace
}  // namespace lockstep::exchange
