#include "model/config.h"

#include "checkpoint/testing/files.h"

namespace nibble::model {
namespace {

using test::expect_error;

TEST(config, presets_are_valid_and_found_by_name) {
  EXPECT_EQ(preset("gpt-oss-20b"), gpt_oss_20b());
  EXPECT_EQ(preset("gpt-oss-120b"), gpt_oss_120b());
  EXPECT_EQ(preset("tiny"), tiny());
  for (const ModelConfig& c : {gpt_oss_20b(), gpt_oss_120b(), tiny()}) EXPECT_NO_THROW(validate(c));
  expect_error([] { (void)preset("gpt-5"); }, Code::kInvalidRequest,
               "want gpt-oss-20b, gpt-oss-120b, gpt-oss-puzzle-88b or tiny, found gpt-5");
}

TEST(config, presets_have_the_published_dimensions) {
  const ModelConfig c = gpt_oss_120b();
  EXPECT_EQ(c.dims, (backend::Dims{36, 2880, 64, 8, 64, 2880, 128, 4, 201088, 128, 131072}));
  EXPECT_EQ(gpt_oss_20b().dims.layers, 24);
  EXPECT_EQ(gpt_oss_20b().dims.experts, 32);
  EXPECT_EQ(c.layer_kinds[0], LayerKind::kSliding);
  EXPECT_EQ(c.layer_kinds[35], LayerKind::kFull);
  EXPECT_EQ(c.layers_of(LayerKind::kSliding), 18);
}

TEST(config, ollamas_name_is_that_of_openais_layers_and_experts) {
  ModelConfig longer = gpt_oss_20b();
  longer.dims.max_context *= 2;
  EXPECT_EQ(ollama_name(longer), "gpt-oss:20b");
  EXPECT_EQ(ollama_name(gpt_oss_120b()), "gpt-oss:120b");
  EXPECT_EQ(ollama_name(truncated(gpt_oss_20b(), 23)), "");
  EXPECT_EQ(ollama_name(gpt_oss_puzzle_88b()), "");  // of the same layers, with fewer experts in some
  EXPECT_EQ(ollama_name(tiny()), "");
}

TEST(config, truncates_layers) {
  const ModelConfig c = truncated(gpt_oss_20b(), 3);
  EXPECT_EQ(c.dims.layers, 3);
  EXPECT_EQ(c.layer_kinds.size(), 3u);
  EXPECT_NO_THROW(validate(c));
  expect_error([] { (void)truncated(gpt_oss_20b(), 25); }, Code::kInvalidRequest, "layers: want 1 to 24, found 25");
  expect_error([] { (void)truncated(gpt_oss_20b(), 0); }, Code::kInvalidRequest, "layers: want 1 to 24, found 0");
}

template <class Change>
void expect_invalid(const Change& change, Code code, std::string_view message) {
  ModelConfig c = tiny();
  change(c);
  expect_error([&] { validate(c); }, code, message);
}

TEST(config, refuses_dimensions_below_one) {
  using D = backend::Dims;
  const std::pair<int64_t D::*, const char*> fields[] = {{&D::layers, "num_hidden_layers"},
                                                         {&D::hidden, "hidden_size"},
                                                         {&D::heads, "num_attention_heads"},
                                                         {&D::kv_heads, "num_key_value_heads"},
                                                         {&D::head_dim, "head_dim"},
                                                         {&D::inter, "intermediate_size"},
                                                         {&D::experts, "num_local_experts"},
                                                         {&D::topk, "num_experts_per_tok"},
                                                         {&D::vocab, "vocab_size"},
                                                         {&D::sliding_window, "sliding_window"},
                                                         {&D::max_context, "max_position_embeddings"}};
  for (const auto& [field, name] : fields) {
    expect_invalid([&](ModelConfig& c) { c.dims.*field = 0; }, Code::kCorrupt,
                   fmt::format("the model: {}: want 1 to ", name));
  }
}

TEST(config, puzzle_has_the_published_layers) {
  const ModelConfig c = preset("gpt-oss-puzzle-88b");
  validate(c);
  EXPECT_EQ(c.layers_of(LayerKind::kSliding), 18);
  EXPECT_EQ(c.layers_of(LayerKind::kWide), 8);
  EXPECT_EQ(c.layers_of(LayerKind::kFull), 10);
  EXPECT_EQ(std::count(c.layer_experts.begin(), c.layer_experts.end(), 128), 18);
  EXPECT_EQ(std::count(c.layer_experts.begin(), c.layer_experts.end(), 64), 18);
  EXPECT_EQ(c.dims.window_of(LayerKind::kWide), 8192);
  EXPECT_EQ(c.layer_kinds[3], LayerKind::kWide);
  EXPECT_EQ(c.layer_kinds[7], LayerKind::kFull);
  EXPECT_EQ(c.layer_experts[15], 64);
  EXPECT_EQ(c.layer_experts[16], 128);
  EXPECT_EQ(c.keys_of(131072), 18 * 128 + 8 * 8192 + 10 * 131072);
  EXPECT_EQ(c.keys_of(1000), 18 * 128 + 18 * 1000);
}

TEST(config, a_kind_and_a_number_of_experts_that_no_layer_is_left_of_are_gone) {
  const ModelConfig few = truncated(gpt_oss_puzzle_88b(), 3), more = truncated(gpt_oss_puzzle_88b(), 16);
  EXPECT_EQ(few.dims.wide_window, 0);
  EXPECT_TRUE(few.layer_experts.empty());
  EXPECT_EQ(more.dims.wide_window, 8192);
  EXPECT_EQ(more.layer_experts.back(), 64);
  validate(few);
  validate(more);
}

TEST(config, refuses_shapes_that_no_format_holds) {
  expect_invalid([](ModelConfig& c) { c.dims.hidden = 48; }, Code::kUnsupported,
                 "the model: hidden_size: want a multiple of 32 (MXFP4 blocks), found 48");
  expect_invalid([](ModelConfig& c) { c.dims.inter = 33; }, Code::kUnsupported,
                 "the model: intermediate_size: want a multiple of 32 (MXFP4 blocks), found 33");
  expect_invalid([](ModelConfig& c) { c.dims.head_dim = 45; }, Code::kUnsupported,
                 "the model: head_dim: want an even number (rope rotates pairs), found 45");
}

TEST(config, refuses_contradictions) {
  expect_invalid([](ModelConfig& c) { c.dims.kv_heads = 3; }, Code::kCorrupt,
                 "the model: num_attention_heads: want a multiple of num_key_value_heads = 3, found 4");
  expect_invalid([](ModelConfig& c) { c.dims.topk = 9; }, Code::kCorrupt,
                 "the model: num_experts_per_tok: want at most num_local_experts = 8, found 9");
  expect_invalid([](ModelConfig& c) { c.layer_kinds.pop_back(); }, Code::kCorrupt,
                 "the model: layer_types: want one per layer = 4, found 3");
  expect_invalid([](ModelConfig& c) { c.rope.beta_slow = 32; }, Code::kCorrupt,
                 "the model: beta_fast: want more than beta_slow = 32, found 32");
  expect_invalid([](ModelConfig& c) { c.rope.theta = 1; }, Code::kCorrupt,
                 "the model: rope_theta: want 1.5 to 1000000000000, found 1");
  expect_invalid([](ModelConfig& c) { c.rope.factor = 0.5; }, Code::kCorrupt,
                 "the model: factor: want 1 to 1000000, found 0.5");
  expect_invalid([](ModelConfig& c) { c.rope.original_context = 0; }, Code::kCorrupt,
                 "the model: original_max_position_embeddings: want 1 to 16777216, found 0");
  expect_invalid([](ModelConfig& c) { c.rms_eps = 0; }, Code::kCorrupt,
                 "the model: rms_norm_eps: want 1e-12 to 0.1, found 0");
  expect_invalid([](ModelConfig& c) { c.swiglu_limit = -7; }, Code::kCorrupt,
                 "the model: swiglu_limit: want 0.001 to 1000000, found -7");
}

TEST(config, refuses_token_ids_outside_the_vocab) {
  expect_invalid([](ModelConfig& c) { c.eos_ids = {1, 201088}; }, Code::kCorrupt,
                 "the model: eos_token_id: want 0 to 201087, found 201088");
  expect_invalid([](ModelConfig& c) { c.bos_id = -1; }, Code::kCorrupt,
                 "the model: bos_token_id: want 0 to 201087, found -1");
  expect_invalid([](ModelConfig& c) { c.pad_id = 201088; }, Code::kCorrupt,
                 "the model: pad_token_id: want 0 to 201087, found 201088");
}

}  // namespace
}  // namespace nibble::model
