#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::tree {

/// Node (level l, index k) covers the microbatches [k*2^l, min((k+1)*2^l, K)).
struct Node {
  uint32_t level = 0;
  uint32_t index = 0;

  friend bool operator==(const Node&, const Node&) = default;
};

/// The binary tree in which K leaves are added (design.md section 3, rule 3). It depends on K only:
/// who computed which leaf, and when, has no say in the order of the additions.
///
/// A node whose right half lies beyond K has its left child's value, so both are one node here,
/// named by the *highest* level with that value ("canonical"). Every canonical node but the root
/// has a sibling. All nodes that this class hands out are canonical.
class ReductionTree {
 public:
  /// 1 <= leaf_count.
  explicit ReductionTree(uint32_t leaf_count);

  uint32_t leaf_count() const { return leaf_count_; }

  /// First microbatch that the node covers, and the one after its last.
  uint32_t begin(Node node) const { return node.index << node.level; }
  uint32_t end(Node node) const;

  Node leaf(uint32_t microbatch) const { return canonical({0, microbatch}); }
  Node root() const { return canonical({0, 0}, true); }
  bool is_root(Node node) const { return begin(node) == 0 && end(node) == leaf_count_; }

  /// The other child of the node's parent; none for the root.
  std::optional<Node> sibling(Node node) const;

  /// True where the node stands left of its sibling in the sum.
  bool is_left(Node node) const { return node.index % 2 == 0; }

  /// REQUIRES: not the root.
  Node parent(Node node) const { return canonical({node.level + 1, node.index / 2}); }

  bool covers(Node outer, Node inner) const {
    return begin(outer) <= begin(inner) && end(inner) <= end(outer);
  }

  /// The fewest nodes that together cover [begin, end), from left to right.
  std::vector<Node> cover(uint32_t begin, uint32_t end) const;

  /// The largest node that ends at `end`, begins at `begin` or later, and covers at most
  /// `most` microbatches; none if there is no such node. Thieves take work by it.
  std::optional<Node> largest_ending_at(uint32_t begin, uint32_t end, uint32_t most) const;

 private:
  Node canonical(Node node, bool to_root = false) const;

  uint32_t leaf_count_;
};

/// The most partials that live at once while [begin, end) is computed in order, with the one that
/// is being written: the slots that the owner of this run needs (ledger.md, "Slots").
uint32_t slots_needed(uint32_t begin, uint32_t end);

}  // namespace lockstep::tree
