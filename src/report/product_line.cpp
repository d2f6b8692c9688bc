#include "src/report/product_line.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include <fmt/format.h>

#include "src/base/check.h"
#include "src/base/counted.h"
#include "src/report/progress.h"

namespace lockstep::report {
namespace {

using base::counted;

constexpr size_t kMostSharesListed = 8;

std::vector<uint64_t> even_shares(const Product& product) {
  const uint64_t size = product.microbatch;
  const uint64_t microbatches = (product.global_batch - 1) / size + 1;
  std::vector<uint64_t> shares;  // [rank]
  uint64_t left = product.global_batch;
  for (uint64_t rank = 0; rank < product.replicas; ++rank) {
    const uint64_t own =
        microbatches / product.replicas + (rank < microbatches % product.replicas ? 1 : 0);
    // Not own * size: a microbatch may be set far larger than the batch.
    shares.push_back(own == 0 ? 0 : own > left / size ? left : own * size);
    left -= shares.back();
  }
  return shares;
}

// "4 + 4 + 3", or for many replicas "17 or 18 each", "16 to 20 each".
std::string list_shares(const std::vector<uint64_t>& shares) {
  if (shares.size() <= kMostSharesListed) return fmt::format("{}", fmt::join(shares, " + "));
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  return fmt::format("{} {} {} each", *least, *most - *least == 1 ? "or" : "to", *most);
}

std::string batch_text(const Product& product) {
  const std::string batch = fmt::format("global batch {}", product.global_batch);
  const std::string replicas = counted(product.replicas, "replica");
  if (product.per_replica) {
    return fmt::format("{} = {} per replica x {} x {}", batch, *product.per_replica, replicas,
                       counted(product.accumulation, "accumulation step"));
  }
  if (product.replicas == 1) return fmt::format("{} on 1 replica", batch);
  const auto shares = product.shares.empty() ? even_shares(product) : product.shares;
  if (std::all_of(shares.begin(), shares.end(), [&](uint64_t s) { return s == shares[0]; })) {
    return fmt::format("{} = {} per replica x {} x 1 accumulation step", batch, shares[0],
                       replicas);
  }
  return fmt::format("{} over {} ({})", batch, replicas, list_shares(shares));
}

std::string microbatch_text(const Product& product) {
  if (product.microbatch >= product.global_batch) return "in a single microbatch";
  const uint64_t last = product.global_batch % product.microbatch;
  std::string text = fmt::format("in microbatches of {}", product.microbatch);
  if (last != 0) text += fmt::format(", the last of {}", last);
  return text;
}

std::string learning_rate_text(const Product& product) {
  const std::string rate = "learning rate " + format_learning_rate(product.learning_rate);
  if (product.scale == LearningRateScale::kNone) return rate + " (unscaled)";
  return fmt::format(
      "{} ({} scaled {} global batch {} to {})", rate,
      format_learning_rate(product.base_learning_rate),
      product.scale == LearningRateScale::kLinear ? "linearly from" : "by the square root from",
      product.base_batch, product.global_batch);
}

void check_product(const Product& product) {
  LOCKSTEP_CHECK(product.global_batch > 0, product.global_batch, 1);
  LOCKSTEP_CHECK(product.microbatch > 0, product.microbatch, 1);
  LOCKSTEP_CHECK(product.replicas > 0, product.replicas, 1);
  if (product.per_replica) {
    LOCKSTEP_CHECK(
        *product.per_replica * product.replicas * product.accumulation == product.global_batch,
        *product.per_replica * product.replicas * product.accumulation, product.global_batch);
  }
  if (!product.shares.empty()) {
    LOCKSTEP_CHECK(product.shares.size() == product.replicas, product.shares.size(),
                   product.replicas);
    const uint64_t sum = std::accumulate(product.shares.begin(), product.shares.end(), uint64_t{0});
    LOCKSTEP_CHECK(sum == product.global_batch, sum, product.global_batch);
  }
}

}  // namespace

std::string product_line(const Product& product) {
  check_product(product);
  std::string line = fmt::format("{}, {}", batch_text(product), microbatch_text(product));
  if (product.context) {
    line += "; " + counted(product.global_batch * *product.context, "token per update",
                           "tokens per update");
  }
  if (product.updates_per_epoch) {
    line += "; " + counted(*product.updates_per_epoch, "update per epoch", "updates per epoch");
  }
  return line + "; " + learning_rate_text(product);
}

std::optional<std::string> product_change_line(uint64_t global_batch_before, const Product& now,
                                               const std::string& place_before) {
  if (global_batch_before == now.global_batch) return std::nullopt;
  const std::string change = fmt::format("global batch was {} (in {}), is now {}; ",
                                         global_batch_before, place_before, now.global_batch);
  if (now.scale != LearningRateScale::kNone) return change + learning_rate_text(now);
  return change + fmt::format("the learning rate did not follow and stays {}",
                              format_learning_rate(now.learning_rate));
}

}  // namespace lockstep::report
