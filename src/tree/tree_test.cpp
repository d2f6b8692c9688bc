#include "src/tree/tree.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace lockstep::tree {
namespace {

TEST(ReductionTree, FiveLeavesHaveTheShapeOfTheDefinition) {
  const ReductionTree tree(5);
  EXPECT_EQ(tree.leaf(4), (Node{2, 1}));  // alone up to the root's right half
  EXPECT_EQ(tree.sibling(Node{2, 1}), (Node{2, 0}));
  EXPECT_EQ(tree.root(), (Node{3, 0}));
  EXPECT_EQ(tree.cover(0, 5), (std::vector<Node>{{3, 0}}));
  EXPECT_EQ(tree.cover(1, 5), (std::vector<Node>{{0, 1}, {1, 1}, {2, 1}}));
}

TEST(ReductionTree, OneLeafIsTheRoot) {
  const ReductionTree tree(1);
  EXPECT_TRUE(tree.is_root(tree.leaf(0)));
  EXPECT_EQ(tree.sibling(tree.leaf(0)), std::nullopt);
}

TEST(ReductionTree, CoversAreDisjointCompleteAndMinimal) {
  for (uint32_t leaf_count = 1; leaf_count <= 33; ++leaf_count) {
    const ReductionTree tree(leaf_count);
    for (uint32_t begin = 0; begin < leaf_count; ++begin) {
      for (uint32_t end = begin + 1; end <= leaf_count; ++end) {
        const auto cover = tree.cover(begin, end);
        uint32_t at = begin;
        for (size_t i = 0; i < cover.size(); ++i) {
          ASSERT_EQ(tree.begin(cover[i]), at);
          at = tree.end(cover[i]);
          if (i > 0 && !tree.is_root(cover[i])) {  // no two neighbours make a larger node
            ASSERT_FALSE(tree.sibling(cover[i]) == cover[i - 1]) << leaf_count;
          }
        }
        ASSERT_EQ(at, end);
      }
    }
  }
}

TEST(ReductionTree, EveryPathUpEndsAtTheRootAndSiblingsPair) {
  for (uint32_t leaf_count = 1; leaf_count <= 70; ++leaf_count) {
    const ReductionTree tree(leaf_count);
    for (uint32_t m = 0; m < leaf_count; ++m) {
      Node node = tree.leaf(m);
      while (!tree.is_root(node)) {
        const auto sibling = tree.sibling(node);
        ASSERT_TRUE(sibling.has_value());
        ASSERT_EQ(tree.sibling(*sibling), node);
        ASSERT_EQ(tree.parent(*sibling), tree.parent(node));
        ASSERT_NE(tree.is_left(node), tree.is_left(*sibling));
        node = tree.parent(node);
      }
      ASSERT_EQ(node, tree.root());
    }
  }
}

TEST(ReductionTree, AThiefTakesAnAlignedNodeThatEndsAtTheHighEnd) {
  const ReductionTree tree(13);
  EXPECT_EQ(tree.largest_ending_at(0, 13, 6), (Node{3, 1}));  // 8..12
  EXPECT_EQ(tree.largest_ending_at(0, 13, 4), (Node{2, 3}));  // 12 alone
  EXPECT_EQ(tree.largest_ending_at(0, 12, 6), (Node{2, 2}));  // 8..11
  EXPECT_EQ(tree.largest_ending_at(0, 12, 3), (Node{1, 5}));  // 10, 11
  EXPECT_EQ(tree.largest_ending_at(11, 12, 1), (Node{0, 11}));
  EXPECT_EQ(tree.largest_ending_at(5, 5, 1), std::nullopt);
  EXPECT_EQ(tree.largest_ending_at(0, 8, 8), (Node{3, 0}));
}

TEST(SlotsNeeded, IsThePeakOfInOrderMergingPlusTheOneBeingWritten) {
  EXPECT_EQ(slots_needed(0, 1), 1u);
  EXPECT_EQ(slots_needed(0, 2), 2u);
  EXPECT_EQ(slots_needed(0, 8), 4u);  // 0..3, 4..5, 6, and 7 being written
  EXPECT_EQ(slots_needed(3, 3), 0u);
  EXPECT_EQ(slots_needed(1, 8), 5u);  // 1, 2..3, 4..5, 6, and 7 being written
}

}  // namespace
}  // namespace lockstep::tree
