#include "app/setup/backend_choice.h"

#include "backend/cpu/kernels.h"
#include "backend/cuda/card/cards.h"
#include "base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

namespace nibble::app {
namespace {

using backend::Activations;
using backend::KvDtype;
using backend::WeightFormat;
using backend::cuda::card_named;
using testing::HasSubstr;
using testing::StartsWith;

constexpr FastPlace kPlaces[] = {FastPlace::kCpu,      FastPlace::kTilesCpu, FastPlace::kCard,
                                 FastPlace::kBf16Card, FastPlace::kFp8Card,  FastPlace::kBlockScaledCard};

ModelOptions fast_options(BackendKind backend) {
  ModelOptions options;
  options.model = "gpt-oss-20b";
  options.load_format = LoadFormat::kDummy;
  options.run.backend = backend;
  options.run.fast = true;
  return options;
}

TEST(fast, every_place_has_a_set_that_costs_less_than_a_hundredth) {
  for (const FastPlace place : kPlaces) {
    const FastSet* const set = fastest_at(place);
    ASSERT_NE(set, nullptr);
    EXPECT_EQ(set->place, place);
    EXPECT_LT(set->loss, kFastLoss);
    EXPECT_FALSE(describe(*set).empty());
  }
  EXPECT_EQ(fastest_at({}), nullptr);
  EXPECT_EQ(describe(*fastest_at(FastPlace::kCpu)), "dense layers mxfp4, activations int8, KV cache fp8");
}

TEST(fast, a_card_keeps_bf16_pages_where_its_own_attention_takes_no_others) {
  const ModelOptions asked = fast_options(BackendKind::kCuda);
  const ModelOptions hopper = with_fast(asked, card_named("h100").facts),
                     spark = with_fast(asked, card_named("gb10").facts);
  for (const ModelOptions& o : {hopper, spark}) {
    EXPECT_EQ(o.run.dense.qkv, WeightFormat::kMxfp4);
    EXPECT_EQ(o.run.dense.o, WeightFormat::kMxfp4);
    EXPECT_EQ(o.run.dense.lm_head, WeightFormat::kMxfp4);
    EXPECT_THAT(o.fast_why, StartsWith("fast: dense layers mxfp4"));
    EXPECT_THAT(o.fast_why, HasSubstr("% of perplexity on nibble-tiny"));
  }
  EXPECT_EQ(hopper.run.kv, KvDtype::kBf16);
  EXPECT_EQ(spark.run.kv, KvDtype::kE4m3);
  EXPECT_EQ(hopper.run.activations, Activations::kMxfp8) << "prompts; few tokens are multiplied as they are";
  EXPECT_EQ(hopper.run.dense_activations, Activations::kAuto);
  // Where GEMMs multiply codes it is.
  EXPECT_EQ(spark.run.activations, Activations::kMxfp6);
  EXPECT_EQ(spark.run.dense_activations, Activations::kMxfp8);
  EXPECT_TRUE(spark.run.fp8_attention());
  EXPECT_FALSE(hopper.run.fp8_attention());
  ModelOptions streaming = asked;
  streaming.run.family = backend::KernelFamily::kStreaming;
  EXPECT_EQ(with_fast(streaming, card_named("gb10").facts).run.activations, Activations::kAuto);
  EXPECT_FALSE(with_fast(streaming, card_named("gb10").facts).run.fp8_attention());
  EXPECT_EQ(with_fast(streaming, card_named("h100").facts).run.activations, Activations::kAuto);
}

TEST(fast, plain_kernels_and_no_card_leave_all_as_it_is) {
  ModelOptions plain = fast_options(BackendKind::kCuda), attention = plain;
  plain.run.family = backend::KernelFamily::kReference;
  attention.run.attention = backend::AttentionKernel::kReference;
  EXPECT_EQ(with_fast(attention, card_named("gb10").facts).run.kv, KvDtype::kBf16);
  EXPECT_EQ(with_fast(attention, card_named("gb10").facts).run.activations, Activations::kAuto);
  EXPECT_EQ(with_fast(attention, card_named("h100").facts).run.activations, Activations::kMxfp8);
  for (const ModelOptions& o :
       {with_fast(plain, card_named("h100").facts), with_fast(fast_options(BackendKind::kCuda), std::nullopt)}) {
    EXPECT_FALSE(o.run.dense.qkv.has_value());
    EXPECT_FALSE(o.run.kv.has_value());
    EXPECT_EQ(o.fast_why, "fast: nothing lossy is known to be faster here");
  }
}

TEST(fast, on_a_cpu_the_instruction_set_decides) {
  for (const auto& [isa, kernels] : backend::cpu::kernels_here()) {
    ModelOptions asked = fast_options(BackendKind::kCpu);
    asked.run.isa = isa;
    const ModelOptions o = with_fast(asked, std::nullopt);
    if (kernels.int8 == nullptr) {
      EXPECT_EQ(o.fast_why, "fast: nothing lossy is known to be faster here");
      EXPECT_FALSE(o.run.dense.qkv.has_value());
      continue;
    }
    EXPECT_EQ(o.run.dense.lm_head, WeightFormat::kMxfp4);
    EXPECT_EQ(o.run.activations, Activations::kInt8);
    EXPECT_EQ(o.run.kv, kernels.int8->paired != nullptr ? KvDtype::kBf16 : KvDtype::kE4m3);
  }
}

TEST(fast, who_names_a_format_beside_it_is_told_and_who_does_not_ask_gets_nothing) {
  ModelOptions dense = fast_options(BackendKind::kCpu), moe = dense, kv = dense, none = dense, inputs = dense,
               attention = dense;
  dense.run.dense.o = WeightFormat::kMxfp8;
  moe.run.activations = Activations::kMxfp6;
  kv.run.kv = KvDtype::kF32;
  inputs.run.dense_activations = Activations::kMxfp8;
  attention.run.attention_activations = backend::AttentionActivations::kFp8;
  for (const auto& [options, flag] :
       {std::pair{attention, "--attention-activation"}, std::pair{dense, "--mxfp4-layers or --mxfp8-layers"},
        std::pair{moe, "--moe-activation"}, std::pair{inputs, "--dense-activation"},
        std::pair{kv, "--kv-cache-dtype"}}) {
    try {
      static_cast<void>(with_fast(options, std::nullopt));
      ADD_FAILURE() << flag;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidRequest);
      EXPECT_THAT(error.what(), HasSubstr(flag));
    }
  }
  none.run.fast = false;
  none.model = "nothing is read";
  EXPECT_EQ(with_fast(none, std::nullopt).fast_why, "");
}

}  // namespace
}  // namespace nibble::app
