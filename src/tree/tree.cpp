#include "src/tree/tree.h"

#include <algorithm>
#include <bit>

#include "src/base/check.h"

namespace lockstep::tree {

ReductionTree::ReductionTree(uint32_t leaf_count) : leaf_count_(leaf_count) {
  LOCKSTEP_CHECK(leaf_count >= 1 && leaf_count <= (1u << 30), leaf_count, 1u << 30);
}

uint32_t ReductionTree::end(Node node) const {
  const uint64_t end = (uint64_t{node.index} + 1) << node.level;
  return static_cast<uint32_t>(std::min<uint64_t>(end, leaf_count_));
}

Node ReductionTree::canonical(Node node, bool to_root) const {
  LOCKSTEP_CHECK(begin(node) < leaf_count_, begin(node), leaf_count_);
  while ((uint64_t{1} << node.level) < leaf_count_) {
    const bool right_is_missing =
        node.index % 2 == 0 && (uint64_t{node.index + 1} << node.level) >= leaf_count_;
    if (!right_is_missing && !to_root) break;
    node = {node.level + 1, node.index / 2};
  }
  return node;
}

std::optional<Node> ReductionTree::sibling(Node node) const {
  if (is_root(node)) return std::nullopt;
  return canonical({node.level, node.index ^ 1});
}

std::vector<Node> ReductionTree::cover(uint32_t begin, uint32_t end) const {
  std::vector<Node> nodes;
  while (begin < end) {
    Node node = leaf(begin);
    while (!is_root(node)) {
      const Node up = parent(node);
      if (this->begin(up) != begin || this->end(up) > end) break;
      node = up;
    }
    LOCKSTEP_CHECK(this->end(node) <= end, this->end(node), end);
    nodes.push_back(node);
    begin = this->end(node);
  }
  return nodes;
}

std::optional<Node> ReductionTree::largest_ending_at(uint32_t begin, uint32_t end,
                                                     uint32_t most) const {
  if (begin >= end) return std::nullopt;
  std::optional<Node> best;
  for (Node node = leaf(end - 1);; node = parent(node)) {
    const uint32_t from = this->begin(node);
    if (this->end(node) != end || from < begin || end - from > most) break;
    best = node;
    if (is_root(node)) break;
  }
  return best;
}

uint32_t slots_needed(uint32_t begin, uint32_t end) {
  // The live partials of [begin, m) are its cover. Its size changes by one node at most from m to
  // m+1, and large runs repeat their pattern, but K is at most 65,535: counting all is cheap
  // enough.
  uint32_t peak = 0;
  for (uint32_t m = begin; m < end; ++m) {
    uint32_t nodes = 0;
    for (uint32_t at = begin; at < m; ++nodes) {
      // The largest aligned power of two that starts at `at` and ends by m.
      const auto alignment = static_cast<uint32_t>(at == 0 ? 31 : std::countr_zero(at));
      const auto room = static_cast<uint32_t>(std::bit_width(m - at) - 1);
      at += 1u << std::min(alignment, room);
    }
    peak = std::max(peak, nodes + 1);
  }
  return peak;
}

}  // namespace lockstep::tree
