#include "src/tree/sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>

#include <gtest/gtest.h>

namespace lockstep::tree {
namespace {

using Values = std::vector<float>;

// Leaves whose sum depends on the order of additions: large values that cancel, and small ones.
std::vector<Values> cancelling_leaves(uint32_t leaf_count, size_t elements, unsigned seed) {
  std::mt19937 random(seed);
  const float scale[] = {1e8f, 1.0f, -1e8f, 3e-3f};
  std::vector<Values> leaves(leaf_count, Values(elements));
  for (uint32_t m = 0; m < leaf_count; ++m) {
    for (float& value : leaves[m]) {
      value = scale[(m + random() % 2) % 4] * (1.0f + static_cast<float>(random() % 1000) / 1e3f);
    }
  }
  return leaves;
}

// The definition of rule 3, one element at a time, straight from its words. Null: absent.
std::optional<float> by_definition(const std::vector<const Values*>& leaves, size_t element,
                                   uint32_t level, uint32_t index) {
  const auto leaf_count = static_cast<uint32_t>(leaves.size());
  if ((index << level) >= leaf_count) return std::nullopt;
  if (level == 0) {
    if (leaves[index] == nullptr) return std::nullopt;
    return (*leaves[index])[element];
  }
  const auto left = by_definition(leaves, element, level - 1, 2 * index);
  const auto right = by_definition(leaves, element, level - 1, 2 * index + 1);
  if (!left || !right) return left ? left : right;
  return *left + *right;
}

bool same_bits(const Values& left, const Values& right) {
  return left.size() == right.size() &&
         std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) == 0;
}

Values root_by_definition(const std::vector<const Values*>& leaves, size_t elements) {
  Values root(elements, 0.0f);
  for (size_t i = 0; i < elements; ++i) root[i] = by_definition(leaves, i, 31, 0).value_or(0.0f);
  return root;
}

// Computes every node of `cover` with merge(), in order of microbatches, as a replica does.
Values node_by_merging(const ReductionTree& tree, Node node,
                       const std::vector<const Values*>& leaves, size_t elements, bool& present) {
  struct Partial {
    Node node;
    Values values;
    bool present;
  };
  std::vector<Partial> live;
  for (uint32_t m = tree.begin(node); m < tree.end(node); ++m) {
    Node at = tree.leaf(m);
    std::vector<Operand<float>> operands;
    std::vector<Partial> consumed;
    while (at != node && !live.empty() && tree.sibling(at) == live.back().node) {
      consumed.push_back(std::move(live.back()));
      live.pop_back();
      at = tree.parent(at);
    }
    for (const Partial& partial : consumed) {
      if (partial.present) operands.push_back({partial.values.data(), true});
    }
    Values out(elements, 0.0f);
    const float* leaf = leaves[m] == nullptr ? nullptr : leaves[m]->data();
    merge<float>(out.data(), leaf, operands, elements);
    live.push_back({at, out, leaf != nullptr || !operands.empty()});
  }
  EXPECT_EQ(live.size(), 1u);
  present = live.front().present;
  return live.front().values;
}

TEST(Sum, SameBitsForEveryDivisionOfTheLeavesIntoRuns) {
  for (uint32_t leaf_count : {1u, 2u, 3u, 5u, 7u, 8u, 11u, 16u, 37u}) {
    const ReductionTree tree(leaf_count);
    for (unsigned seed = 0; seed < 40; ++seed) {
      std::mt19937 random(seed * 1000 + leaf_count);
      const size_t elements = 1 + random() % 2500;
      const auto values = cancelling_leaves(leaf_count, elements, seed);
      std::vector<const Values*> leaves;
      for (const Values& leaf : values) leaves.push_back(random() % 4 == 0 ? nullptr : &leaf);
      // Cut 0 .. K-1 at random places into runs, each run into its cover.
      std::vector<Node> cover;
      for (uint32_t begin = 0; begin < leaf_count;) {
        const uint32_t end = begin + 1 + static_cast<uint32_t>(random() % (leaf_count - begin));
        for (const Node& node : tree.cover(begin, end)) cover.push_back(node);
        begin = end;
      }
      std::vector<Values> partials;
      std::vector<bool> present;
      for (const Node& node : cover) {
        bool is_present = false;
        partials.push_back(node_by_merging(tree, node, leaves, elements, is_present));
        present.push_back(is_present);
      }
      std::vector<const float*> inputs;
      for (size_t i = 0; i < cover.size(); ++i) {
        inputs.push_back(present[i] ? partials[i].data() : nullptr);
      }
      Values sum(elements, 77.0f);
      const bool any = SumPlan(tree, cover).sum<float>(sum.data(), inputs, elements);
      ASSERT_EQ(any,
                std::any_of(leaves.begin(), leaves.end(), [](auto* p) { return p != nullptr; }));
      ASSERT_TRUE(same_bits(sum, root_by_definition(leaves, elements)))
          << "K " << leaf_count << " seed " << seed;
    }
  }
}

TEST(Sum, TheCancellingInputsDoDependOnTheOrder) {
  // The test above could not fail if any order gave these bits.
  const auto values = cancelling_leaves(7, 500, 1);
  std::vector<const Values*> leaves;
  for (const Values& leaf : values) leaves.push_back(&leaf);
  Values from_left_to_right(500, 0.0f);
  for (const Values& leaf : values) {
    for (size_t i = 0; i < leaf.size(); ++i) from_left_to_right[i] += leaf[i];
  }
  EXPECT_FALSE(same_bits(from_left_to_right, root_by_definition(leaves, 500)));
}

TEST(Sum, AbsentIsNotZero) {
  // -0 + absent stays -0; -0 + 0 would be +0.
  const ReductionTree tree(2);
  const Values minus_zero{-0.0f};
  const std::vector<Node> cover{{0, 0}, {0, 1}};
  Values sum(1);
  SumPlan(tree, cover)
      .sum<float>(sum.data(), std::vector<const float*>{nullptr, minus_zero.data()}, 1);
  EXPECT_TRUE(std::signbit(sum[0]));
}

TEST(Sum, MeanDividesTheSumOnce) {
  const ReductionTree tree(2);
  const Values left{0.2f, -0.1f, 0.5f};
  const Values right{0.4f, 0.0f, 0.3f};
  Values mean(3);
  SumPlan(tree, std::vector<Node>{{0, 0}, {0, 1}})
      .mean<float>(mean.data(), std::vector<const float*>{left.data(), right.data()}, 2.0, 3);
  EXPECT_EQ(mean[0], 0.3f);
  EXPECT_EQ(mean[1], -0.05f);
  EXPECT_EQ(mean[2], 0.4f);
}

TEST(Sum, DividingByPowersOfTwoIsTheSameDivision) {
  std::mt19937 random(3);
  for (double count : {1.0, 2.0, 512.0, 65536.0, 0.25, 3.0, 11.0, 1e-3}) {
    Values values(2000);
    for (float& value : values) {
      value = std::bit_cast<float>(static_cast<uint32_t>(random()));
      if (!std::isfinite(value)) value = 1e-44f;  // subnormal
    }
    Values divided = values;
    divide(divided.data(), count, divided.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const auto expected = static_cast<float>(static_cast<double>(values[i]) / count);
      ASSERT_EQ(std::bit_cast<uint32_t>(divided[i]), std::bit_cast<uint32_t>(expected));
    }
  }
}

TEST(Sum, HalfPrecisionRangeDoesNotLimitTheSum) {
  // Four gradients of 40000 (an fp16 sum would overflow at 65504) have the mean 40000.
  const ReductionTree tree(4);
  const Values leaf{40000.0f};
  Values mean(1);
  SumPlan(tree, std::vector<Node>{{0, 0}, {0, 1}, {0, 2}, {0, 3}})
      .mean<float>(mean.data(), std::vector<const float*>(4, leaf.data()), 4.0, 1);
  EXPECT_EQ(mean[0], 40000.0f);
}

TEST(Sum, MergeInPlaceEqualsMergeElsewhere) {
  const auto values = cancelling_leaves(3, 3000, 9);
  const std::vector<Operand<float>> operands{{values[1].data(), true}, {values[2].data(), false}};
  Values elsewhere(3000);
  merge<float>(elsewhere.data(), values[0].data(), operands, 3000);
  Values in_place = values[0];
  merge<float>(in_place.data(), in_place.data(), operands, 3000);
  EXPECT_TRUE(same_bits(elsewhere, in_place));
}

TEST(TreeOrder, DoublesAddLikeTheTree) {
  const std::vector<double> values{1e16, 1.0, -1e16, 1.0, 0.5};
  EXPECT_EQ(sum_in_tree_order(values), (((1e16 + 1.0) + (-1e16 + 1.0)) + 0.5));
  EXPECT_EQ(sum_in_tree_order({}), 0.0);
}

TEST(Norm, LanesFoldInTheStatedOrder) {
  std::mt19937 random(5);
  for (size_t n : {0u, 1u, 7u, 8u, 9u, 100u, 4096u}) {
    Values values(n);
    for (float& value : values) value = static_cast<float>(random() % 100000) * 1e-2f - 300.0f;
    double lanes[8] = {};
    for (size_t i = 0; i < n; ++i) {
      const double square = static_cast<double>(values[i]) * static_cast<double>(values[i]);
      lanes[i % 8] = lanes[i % 8] + square;
    }
    const double folded = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
                          ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    EXPECT_EQ(chunk_of_squares(values.data(), n), folded) << n;
  }
}

}  // namespace
}  // namespace lockstep::tree
