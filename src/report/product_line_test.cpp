#include "src/report/product_line.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/report/comma_locale.h"

namespace lockstep::report {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Product dials() {
  Product product;
  product.global_batch = 1024;
  product.microbatch = 32;
  product.replicas = 4;
  product.per_replica = 256;
  product.updates_per_epoch = 977;
  product.learning_rate = 3e-4;
  return product;
}

Product direct(uint64_t global_batch, uint64_t microbatch, uint64_t replicas) {
  Product product;
  product.global_batch = global_batch;
  product.microbatch = microbatch;
  product.replicas = replicas;
  product.learning_rate = 0.1;
  return product;
}

TEST(ProductLine, StatesTheDials) {
  EXPECT_EQ(
      product_line(dials()),
      "global batch 1024 = 256 per replica x 4 replicas x 1 accumulation step, in microbatches "
      "of 32; 977 updates per epoch; learning rate 3e-4 (unscaled)");
}

TEST(ProductLine, UsesSingularAndPlural) {
  Product product = dials();
  product.global_batch = 512;
  product.replicas = 1;
  product.accumulation = 2;
  product.updates_per_epoch = 1;
  product.context = 1;
  EXPECT_EQ(
      product_line(product),
      "global batch 512 = 256 per replica x 1 replica x 2 accumulation steps, in microbatches "
      "of 32; 512 tokens per update; 1 update per epoch; learning rate 3e-4 (unscaled)");
  product = direct(1, 1, 1);
  product.context = 1;
  EXPECT_EQ(product_line(product),
            "global batch 1 on 1 replica, in a single microbatch; "
            "1 token per update; learning rate 0.1 (unscaled)");
}

TEST(ProductLine, TokensPerUpdateAreBatchTimesContext) {
  Product product = dials();
  product.context = 256;
  EXPECT_THAT(product_line(product), HasSubstr("; 262144 tokens per update; 977 updates"));
}

TEST(ProductLine, SharesThatDifferAreListed) {
  EXPECT_THAT(product_line(direct(11, 1, 3)),
              StartsWith("global batch 11 over 3 replicas (4 + 4 + 3), in microbatches of 1;"));
  EXPECT_THAT(
      product_line(direct(11, 2, 5)),
      StartsWith("global batch 11 over 5 replicas (4 + 2 + 2 + 2 + 1), in microbatches of 2, "
                 "the last of 1;"));
  EXPECT_THAT(product_line(direct(2, 1, 4)),
              StartsWith("global batch 2 over 4 replicas (1 + 1 + 0 + 0), in microbatches of 1;"));
}

TEST(ProductLine, EqualSharesAreAProduct) {
  EXPECT_THAT(product_line(direct(12, 2, 3)),
              StartsWith("global batch 12 = 4 per replica x 3 replicas x 1 accumulation step, in "
                         "microbatches of 2;"));
  EXPECT_THAT(product_line(direct(8, 2, 1)),
              StartsWith("global batch 8 on 1 replica, in microbatches of 2;"));
}

TEST(ProductLine, GivenSharesAreShown) {
  Product product = direct(11, 1, 3);
  product.shares = {3, 4, 4};
  EXPECT_THAT(product_line(product), HasSubstr("(3 + 4 + 4)"));
}

TEST(ProductLine, ManyReplicasAreSummedUp) {
  EXPECT_THAT(product_line(direct(100, 1, 16)),
              StartsWith("global batch 100 over 16 replicas (6 or 7 each), "));
  EXPECT_THAT(product_line(direct(100, 2, 16)),
              StartsWith("global batch 100 over 16 replicas (6 to 8 each), "));
}

TEST(ProductLine, AMicrobatchLargerThanTheBatchIsOne) {
  EXPECT_THAT(product_line(direct(11, 32, 2)),
              StartsWith("global batch 11 over 2 replicas (11 + 0), in a single microbatch;"));
  EXPECT_THAT(product_line(direct(11, UINT64_MAX, 2)), HasSubstr("(11 + 0)"));
}

TEST(ProductLine, ScaledRatesSayFromWhat) {
  Product product = dials();
  product.scale = LearningRateScale::kLinear;
  product.base_batch = 256;
  product.base_learning_rate = 3e-4;
  product.learning_rate = 1.2e-3;
  EXPECT_THAT(product_line(product), HasSubstr("; learning rate 0.0012 (3e-4 scaled linearly from "
                                               "global batch 256 to 1024)"));
  product.scale = LearningRateScale::kSqrt;
  EXPECT_THAT(product_line(product), HasSubstr("(3e-4 scaled by the square root from"));
}

TEST(ProductChangeLine, SaysWhatItWasAndThatTheRateStayed) {
  EXPECT_EQ(product_change_line(2048, dials(), "runs/a"),
            "global batch was 2048 (in runs/a), is now 1024; the learning rate did not follow and "
            "stays 3e-4");
  EXPECT_FALSE(product_change_line(1024, dials(), "runs/a").has_value());
  Product scaled = dials();
  scaled.scale = LearningRateScale::kLinear;
  scaled.base_batch = 512;
  scaled.base_learning_rate = 1.5e-4;
  EXPECT_EQ(product_change_line(2048, scaled, "runs/a"),
            "global batch was 2048 (in runs/a), is now 1024; learning rate 3e-4 (0.00015 scaled "
            "linearly from "
            "global batch 512 to 1024)");
}

TEST(ProductLine, TheLocaleDoesNotMatter) {
  const std::string line = product_line(dials());
  const CommaLocale locale;
  EXPECT_EQ(product_line(dials()), line);
}

TEST(ProductLineDeathTest, AProductThatIsWrongIsABug) {
  Product product = dials();
  product.global_batch = 1000;
  EXPECT_DEATH(product_line(product), "1024 against 1000");
}

}  // namespace
}  // namespace lockstep::report
