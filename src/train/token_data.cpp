#include "src/train/token_data.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/base/file.h"
#include "src/train/token_source.h"

namespace lockstep::train {
namespace {

using base::quote_path;

std::string name_of(const std::vector<std::string>& paths) {
  if (paths.size() == 1) return quote_path(paths[0]);
  return fmt::format("{} and {} more", quote_path(paths.at(0)), paths.size() - 1);
}

void check_options(const TokenDataOptions& options) {
  if (options.context == 0) {
    throw Error(ErrorCode::kUsage,
                "the context is 0 tokens; a sequence needs at least 1 (--context).");
  }
  const double fraction = options.validation_fraction;
  if (options.validation_path && fraction != 0) {
    throw Error(
        ErrorCode::kUsage,
        fmt::format("held-out data were asked for twice: the file {} and the share {}. Give "
                    "one of them.",
                    quote_path(*options.validation_path), fraction));
  }
  if (!(fraction >= 0 && fraction < 1)) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the share of held-out data is {}; it must be above 0 and below 1 "
                            "(--validation).",
                            fraction));
  }
}

std::shared_ptr<const TokenSource> open_source(const std::vector<std::string>& paths,
                                               const TokenDataOptions& options) {
  auto source = std::make_shared<const TokenSource>(paths);
  if (options.vocabulary != 0) source->check_vocabulary(options.vocabulary);
  const uint64_t tokens = source->token_count();
  const uint64_t needed = uint64_t{options.context} + 1;
  if (tokens < needed) {
    throw Error(
        ErrorCode::kInput,
        fmt::format("the data in {} are too short: {} {}, but one sequence of context {} needs "
                    "{} ({} and the target after the last). Give more data or a smaller "
                    "--context.",
                    name_of(paths), tokens, tokens == 1 ? "token" : "tokens", options.context,
                    needed, options.context));
  }
  return source;
}

TokenSplit split_off(const TokenData& all, const std::shared_ptr<const TokenSource>& source,
                     const TokenDataOptions& options) {
  const uint64_t sequences = all.sequence_count();
  if (sequences < 2) {
    throw Error(
        ErrorCode::kInput,
        fmt::format("cannot hold out a share of {} of the data in {}: their {} tokens are 1 "
                    "sequence of context {}, and training and validation need one each. Give "
                    "more data, a smaller --context or a file for --validation.",
                    options.validation_fraction, name_of(options.paths), all.tokens(),
                    options.context));
  }
  const double wanted = std::floor(options.validation_fraction * static_cast<double>(sequences));
  const uint64_t held_out = std::clamp<uint64_t>(static_cast<uint64_t>(wanted), 1, sequences - 1);
  const uint64_t start = (sequences - held_out) * options.context;
  return {TokenData(source, options.context, 0, start + 1),
          TokenData(source, options.context, start, all.tokens() - start)};
}

void check_same_tokens(const TokenSource& training, const TokenSource& validation,
                       const TokenDataOptions& options) {
  if (training.width_bytes() == validation.width_bytes()) return;
  const auto kind = [](const TokenSource& source) {
    return source.width_bytes() == 1 ? std::string("text")
                                     : fmt::format("tokens of {} bytes", source.width_bytes());
  };
  throw Error(
      ErrorCode::kInput,
      fmt::format("cannot validate on {} ({}) what is trained on {} ({}): the tokens of the one "
                  "mean nothing to the other. Prepare both in the same way.",
                  quote_path(*options.validation_path), kind(validation), name_of(options.paths),
                  kind(training)));
}

}  // namespace

TokenData::TokenData(std::shared_ptr<const TokenSource> source, uint32_t context,
                     uint64_t first_token, uint64_t token_count)
    : source_(std::move(source)),
      context_(context),
      first_token_(first_token),
      token_count_(token_count) {
  LOCKSTEP_CHECK(context > 0, context, 1);
  LOCKSTEP_CHECK(
      first_token <= source_->token_count() && token_count <= source_->token_count() - first_token,
      first_token + token_count, source_->token_count());
}

uint64_t TokenData::unused_tokens() const {
  const uint64_t sequences = sequence_count();
  return sequences == 0 ? token_count_ : token_count_ - sequences * context_ - 1;
}

uint64_t TokenData::vocabulary_needed() const { return source_->vocabulary_needed(); }

uint32_t TokenData::token_bytes() const { return source_->width_bytes(); }

const std::string& TokenData::summary() const { return source_->summary(); }

void TokenData::copy_sequence(uint64_t index, int64_t* inputs, int64_t* targets) const {
  LOCKSTEP_CHECK(index < sequence_count(), index, sequence_count());
  const uint64_t first = first_token_ + index * context_;
  source_->copy(first, context_, inputs);
  std::copy(inputs + 1, inputs + context_, targets);
  source_->copy(first + context_, 1, targets + context_ - 1);
}

void TokenData::walk_bytes(const std::function<void(std::span<const uint8_t>)>& visit) const {
  source_->walk(first_token_, token_count_, visit);
}

TokenSplit load_token_data(const TokenDataOptions& options) {
  check_options(options);
  const auto source = open_source(options.paths, options);
  const TokenData all(source, options.context, 0, source->token_count());
  if (options.validation_path) {
    const auto validation = open_source({*options.validation_path}, options);
    check_same_tokens(*source, *validation, options);
    return {all, TokenData(validation, options.context, 0, validation->token_count())};
  }
  if (options.validation_fraction > 0) return split_off(all, source, options);
  return {all, std::nullopt};
}

}  // namespace lockstep::train
