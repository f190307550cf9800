#include "model/eagle3/head.h"

#include "base/mmap_file.h"
#include "checkpoint/testing/files.h"

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace nibble::model::eagle3 {
namespace {

using nlohmann::json;
using test::expect_error;

json head(const char* variant) {
  return json::parse(read_text_file(
      std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data/eagle3" / variant / "config.json", 1 << 16));
}

Head parsed(const json& object) { return parse_head_config(object.dump(), "h", {.max_context = 4096}); }

void refused(const char* variant, Code code, const std::function<void(json&)>& change, std::string_view says) {
  json object = head(variant);
  change(object);
  expect_error([&] { static_cast<void>(parsed(object)); }, code, says);
}

TEST(Eagle3HeadConfig, both_spellings_are_read) {
  const Head plain = parsed(head("norm_before_fc"));
  EXPECT_EQ(plain.reads.tap_norms, 1);
  EXPECT_FALSE(plain.fc_norm);
  EXPECT_FALSE(plain.reads.norm_before_residual);
  EXPECT_EQ(plain.layer_ids, (std::vector<int64_t>{4, 6, 8}));
  EXPECT_EQ(plain.config.dims.vocab, 48);
  EXPECT_EQ(plain.config.dims.max_context, 4096) << "the target's";
  EXPECT_EQ(plain.config.layer_kinds, std::vector{LayerKind::kFull});
  json object = head("speculators");
  object.erase("norm_before_residual");
  const Head other = parsed(object);
  EXPECT_TRUE(other.reads.norm_before_residual) << "the default of that format";
  EXPECT_EQ(other.config.dims.vocab, 20);
  EXPECT_EQ(other.config.dims.hidden, 32);
  EXPECT_FALSE(parsed(head("final_state")).reads.fc);
  EXPECT_EQ(parsed(head("fc_norm")).reads.tap_norms, 3);
  EXPECT_EQ(parsed(head("fc_norm")).config.dims.sliding_window, 5);
  EXPECT_EQ(parsed(head("fc_norm")).config.layer_kinds.front(), LayerKind::kSliding);
  object = head("plain");
  object["eagle_aux_hidden_state_layer_ids"] = json::array({-1});
  EXPECT_FALSE(parsed(object).reads.fc);
}

TEST(Eagle3HeadConfig, its_rope_is_the_one_that_it_names) {
  json object = head("plain");
  const int64_t dim = parsed(object).config.dims.head_dim;
  object["rope_theta"] = 5000;
  object["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 64}};
  EXPECT_EQ(parsed(object).rope.inv_freq, llama3_rope({5000, 8, 1, 4, 64}, dim).inv_freq);
  object["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
  const RopeTable yarn = yarn_rope({5000, 4, 32, 1, 64, true}, dim);
  EXPECT_EQ(parsed(object).rope.inv_freq, yarn.inv_freq);
  EXPECT_EQ(parsed(object).rope.concentration, yarn.concentration);
  object["rope_scaling"] = nullptr;
  EXPECT_EQ(parsed(object).rope.inv_freq, plain_rope(5000, dim).inv_freq);
}

TEST(Eagle3HeadConfig, a_head_with_a_mask_token_is_p_eagle) {
  EXPECT_EQ(parsed(head("plain")).mask_token, std::nullopt);
  json object = head("p_eagle");
  EXPECT_EQ(parsed(object).mask_token, 47);
  object["mask_token_id"] = 47;
  object["parallel_drafting"] = true;
  object["architectures"] = json::array({"LlamaForCausalLM"});
  EXPECT_EQ(parsed(object).mask_token, 47);
  object = head("p_eagle_speculators");
  EXPECT_EQ(parsed(object).mask_token, 46);
  object.erase("norm_before_residual");
  EXPECT_FALSE(parsed(object).reads.norm_before_residual) << "the default of that format";

  const auto with = [](const char* key, json value) { return [=](json& o) { o[key] = value; }; };
  refused("p_eagle", Code::kCorrupt, with("ptd_token_id", 48), "h: ptd_token_id: want 0 to 47, found 48");
  refused("p_eagle", Code::kCorrupt, with("ptd_token_id", "47"), "h: ptd_token_id: want an integer, found \"47\"");
  refused("p_eagle", Code::kCorrupt, with("pard_token", 46), "h: ptd_token_id: want 46 as pard_token says");
  refused("p_eagle", Code::kCorrupt, with("parallel_drafting", false),
          "h: parallel_drafting: want true, as there is ptd_token_id, found false");
  refused("plain", Code::kCorrupt, with("parallel_drafting", true), "h: mask_token_id is missing");
  refused(
      "p_eagle_speculators", Code::kCorrupt, [](json& o) { o.erase("mask_token_id"); }, "h: mask_token_id is missing");
  refused("final_state", Code::kUnsupported, with("mask_token_id", 7), "h: use_aux_hidden_state: want true");
  refused("p_eagle", Code::kUnsupported, with("dflash_config", json::object()), "h: dflash_config: want none");
}

TEST(Eagle3HeadConfig, what_is_missing_is_named) {
  for (const char* key : {"hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "rms_norm_eps"}) {
    const std::string says = std::string(key) + " is missing";
    refused("plain", Code::kCorrupt, [&](json& o) { o.erase(key); }, "h: " + says);
    refused(
        "speculators", Code::kCorrupt, [&](json& o) { o["transformer_layer_config"].erase(key); },
        "h: transformer_layer_config: " + says);
  }
}

TEST(Eagle3HeadConfig, what_is_not_known_is_named) {
  const auto unknown = [](json& o) { o["new_norm"] = true; };
  refused("plain", Code::kUnsupported, unknown, "h: new_norm: want keys of an EAGLE-3 head");
  refused("final_state", Code::kUnsupported, [&](json& o) { unknown(o["eagle_config"]); }, "h: eagle_config: new_norm");
  refused("speculators", Code::kUnsupported, [&](json& o) { unknown(o["transformer_layer_config"]); }, "new_norm");
  refused(
      "two_layers", Code::kUnsupported, [&](json& o) { unknown(o["rope_parameters"]); }, "rope_parameters: new_norm");
}

TEST(Eagle3HeadConfig, what_contradicts_itself_or_is_computed_nowhere_is_named) {
  const auto with = [](const char* key, json value) { return [=](json& o) { o[key] = value; }; };
  const auto unsupported = Code::kUnsupported;
  refused("plain", unsupported, with("architectures", json::array({"LlamaForCausalLM"})), "architectures: want one of");
  refused("plain", unsupported, with("hidden_act", "gelu"), "hidden_act: want \"silu\", found \"gelu\"");
  refused("plain", unsupported, with("model_type", "qwen3"), "model_type: want \"llama\"");
  refused("plain", unsupported, with("rope_scaling", {{"rope_type", "longrope"}}), "rope_type: want \"default\"");
  refused("norm_before_fc", unsupported, with("fc_norm", true), "fc_norm: want one of norm_before_fc and fc_norm");
  refused("plain", unsupported, with("eagle_aux_hidden_state_layer_ids", {3, 3}), "want a rising list");
  refused("fc_norm", Code::kCorrupt, with("num_aux_hidden_states", 4), "num_aux_hidden_states: want 3, as many");
  refused("plain", Code::kCorrupt, with("layer_ids", {1, 2}), "layer_ids: want what eagle_aux_hidden_state_layer_ids");
  refused("plain", Code::kCorrupt, with("draft_vocab_size", 49), "draft_vocab_size: want 1 to 48, found 49");
  refused("plain", Code::kCorrupt, with("num_key_value_heads", 3), "want a divisor of num_attention_heads 4, found 3");
  refused("norm_before_fc", Code::kCorrupt, with("norm_before_fc", false), "norm_before_fc: want");
}

}  // namespace
}  // namespace nibble::model::eagle3
