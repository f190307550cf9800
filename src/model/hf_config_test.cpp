#include "model/hf_config.h"

#include "checkpoint/testing/files.h"

#include <nlohmann/json.hpp>

#include <tuple>

namespace nibble::model {
namespace {

using nlohmann::json;
using test::expect_error;
using test::ScratchDir;

// gpt-oss-20b's config.json for Hugging Face, layer_types shortened to 4 layers.
json hugging_face() {
  return json::parse(R"({
    "architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
    "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
    "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4,
    "num_hidden_layers": 4, "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": false,
    "pad_token_id": 199999, "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
    "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false}, "rope_theta": 150000,
    "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false,
    "transformers_version": "4.55.0.dev0", "use_cache": true, "vocab_size": 201088})");
}

json original() {
  return json::parse(R"({"num_hidden_layers": 36, "num_experts": 128, "experts_per_token": 4, "vocab_size": 201088,
    "hidden_size": 2880, "intermediate_size": 2880, "swiglu_limit": 7.0, "head_dim": 64, "num_attention_heads": 64,
    "num_key_value_heads": 8, "sliding_window": 128, "initial_context_length": 4096, "rope_theta": 150000,
    "rope_scaling_factor": 32.0, "rope_ntk_alpha": 1, "rope_ntk_beta": 32})");
}

ModelConfig parse(const json& config) { return parse_hf_config(config.dump(), "f").config; }

std::vector<std::string> notes_of(const json& config) { return parse_hf_config(config.dump(), "f").notes; }

void expect_refused(const json& config, Code code, std::string_view message) {
  expect_error([&] { (void)parse(config); }, code, message);
}

// The config with the value at a JSON pointer replaced, or removed.
json with(json config, const char* pointer, json value) {
  config[json::json_pointer(pointer)] = std::move(value);
  return config;
}
json without(json config, const std::string& key) {
  config.erase(key);
  return config;
}

TEST(hf_config, reads_hugging_faces_spelling) {
  const ModelConfig c = parse(hugging_face());
  EXPECT_EQ(c.dims.layers, 4);
  EXPECT_EQ(c.dims.hidden, 2880);
  EXPECT_EQ(c.dims.inter, 2880);
  EXPECT_EQ(c.dims.heads, 64);
  EXPECT_EQ(c.dims.kv_heads, 8);
  EXPECT_EQ(c.dims.head_dim, 64);
  EXPECT_EQ(c.dims.experts, 32);
  EXPECT_EQ(c.dims.topk, 4);
  EXPECT_EQ(c.dims.vocab, 201088);
  EXPECT_EQ(c.dims.sliding_window, 128);
  EXPECT_EQ(c.dims.max_context, 131072);
  EXPECT_EQ(c.rms_eps, 1e-5f);
  EXPECT_EQ(c.swiglu_limit, 7.0);
  EXPECT_EQ(c.rope.theta, 150000);
  EXPECT_EQ(c.rope.factor, 32);
  EXPECT_EQ(c.rope.beta_fast, 32);
  EXPECT_EQ(c.rope.beta_slow, 1);
  EXPECT_EQ(c.rope.original_context, 4096);
  EXPECT_FALSE(c.rope.truncate);
  using enum LayerKind;
  EXPECT_EQ(c.layer_kinds, (std::vector{kSliding, kFull, kSliding, kFull}));
  EXPECT_TRUE(notes_of(hugging_face()).empty());
  EXPECT_EQ(c.bos_id, std::nullopt);
  EXPECT_EQ(c.pad_id, 199999);
  EXPECT_EQ(c.eos_ids, std::vector<int32_t>{200002});
}

TEST(hf_config, reads_openais_spelling) {
  const ModelConfig c = parse(original());
  EXPECT_EQ(c.dims.layers, 36);
  EXPECT_EQ(c.dims.experts, 128);
  EXPECT_EQ(c.dims.topk, 4);
  EXPECT_EQ(c.dims.max_context, 131072);
  EXPECT_EQ(c.rms_eps, 1e-5f);
  EXPECT_EQ(c.rope.beta_fast, 32);
  EXPECT_EQ(c.rope.beta_slow, 1);
  EXPECT_EQ(c.rope.original_context, 4096);
  EXPECT_FALSE(c.rope.truncate);
  EXPECT_EQ(c.layer_kinds, alternating_layers(c.dims.layers));
  EXPECT_TRUE(notes_of(original()).empty());
  EXPECT_TRUE(c.eos_ids.empty());
}

TEST(hf_config, reads_rope_parameters_of_transformers_5) {
  json config = without(without(without(hugging_face(), "rope_scaling"), "rope_theta"), "initial_context_length");
  config["rope_parameters"] = {{"rope_type", "yarn"},
                               {"rope_theta", 150000.0},
                               {"factor", 16.0},
                               {"beta_fast", 30.0},
                               {"beta_slow", 2.0},
                               {"truncate", false},
                               {"original_max_position_embeddings", 8192}};
  const ModelConfig c = parse(config);
  EXPECT_EQ(c.rope.theta, 150000);
  EXPECT_EQ(c.rope.factor, 16);
  EXPECT_EQ(c.rope.beta_fast, 30);
  EXPECT_EQ(c.rope.beta_slow, 2);
  EXPECT_EQ(c.rope.original_context, 8192);
}

// nvidia's, as public ports read it, shortened to 4 layers.
json puzzle() {
  json config = hugging_face();
  for (const char* of_blocks : {"num_local_experts", "sliding_window"}) config.erase(of_blocks);
  config["model_type"] = "gpt_oss_puzzle";
  config["architectures"] = {"GptOssPuzzleForCausalLM"};
  config["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "sliding_attention"};
  config["rope_scaling"]["factor"] = 64.0;
  config["block_configs"] = json::parse(R"([{"num_local_experts": 128, "sliding_window": 128},
    {"num_local_experts": 128, "sliding_window": null}, {"num_local_experts": 64, "sliding_window": 128},
    {"num_local_experts": 64, "sliding_window": 8192}])");
  return config;
}

TEST(hf_config, reads_layers_that_differ) {
  using enum LayerKind;
  for (const json& config : {puzzle(), without(puzzle(), "layer_types"),
                             with(with(puzzle(), "/num_local_experts", 128), "/sliding_window", nullptr),
                             with(puzzle(), "/block_configs/3/num_experts_per_tok", 4)}) {
    const ModelConfig c = parse(config);
    EXPECT_EQ(c.layer_kinds, (std::vector{kSliding, kFull, kSliding, kWide}));
    EXPECT_EQ(c.layer_experts, (std::vector<int64_t>{128, 128, 64, 64}));
    EXPECT_EQ(c.dims.experts, 128);
    EXPECT_EQ(c.dims.sliding_window, 128);
    EXPECT_EQ(c.dims.wide_window, 8192);
    EXPECT_EQ(c.rope.factor, 64);
    EXPECT_TRUE(notes_of(config).empty());
  }
}

TEST(hf_config, layers_that_are_alike_may_be_said_one_by_one) {
  json config = puzzle();
  for (json& block : config["block_configs"]) block = {{"num_local_experts", 32}, {"sliding_window", 128}};
  config["block_configs"][1]["sliding_window"] = config["block_configs"][3]["sliding_window"] = nullptr;
  config["layer_types"][3] = "full_attention";
  ModelConfig same = parse(hugging_face());
  same.rope.factor = 64;
  EXPECT_EQ(parse(config), same);
}

TEST(hf_config, refuses_layers_that_nothing_here_computes) {
  expect_refused(without(puzzle(), "block_configs"), Code::kCorrupt, "block_configs");
  expect_refused(with(puzzle(), "/architectures/0", "GptOssForCausalLM"), Code::kUnsupported,
                 "f: want model_type \"gpt_oss_puzzle\" and architectures [\"GptOssPuzzleForCausalLM\"]");
  expect_refused(with(puzzle(), "/num_hidden_layers", 5), Code::kCorrupt,
                 "f: block_configs: want a list of 5 layers, found [");
  expect_refused(with(puzzle(), "/block_configs/2", json::object()), Code::kCorrupt, "f: block_configs[2]: ");
  expect_refused(with(puzzle(), "/block_configs/2/sliding_window", 256), Code::kUnsupported,
                 "f: block_configs: want layers of at most 2 windows, found 128, 256, 8192");
  expect_refused(with(puzzle(), "/block_configs/2/num_experts_per_tok", 2), Code::kUnsupported,
                 "f: block_configs[2]: num_experts_per_tok: want 4, as in other layers, found 2");
  expect_refused(with(puzzle(), "/block_configs/2/num_local_experts", 3), Code::kCorrupt,
                 "f: num_local_experts: want 4 to 128 in each layer, found 3");
  expect_refused(with(puzzle(), "/layer_types/1", "sliding_attention"), Code::kCorrupt,
                 "f: layer_types: want full_attention where a block's sliding_window is null, found [");
  EXPECT_EQ(notes_of(with(puzzle(), "/block_configs/2/ffn", 1)),
            std::vector<std::string>{"f: block_configs[2]: not known here, so without effect: ffn"});
}

// openai/gpt-oss-safeguard-20b and -120b are 20b and 120b trained further: the same architecture, the same keys.
TEST(hf_config, reads_safeguards) {
  for (const auto& [layers, experts, base] : {std::tuple{24, 32, gpt_oss_20b()}, {36, 128, gpt_oss_120b()}}) {
    json config = with(with(hugging_face(), "/num_hidden_layers", layers), "/num_local_experts", experts);
    config["layer_types"].clear();
    for (int l = 0; l < layers; ++l)
      config["layer_types"].push_back(l % 2 == 0 ? "sliding_attention" : "full_attention");
    config["transformers_version"] = "4.57.0.dev0";
    ModelConfig read = parse(config);
    apply_generation_config(R"({"bos_token_id": 199998, "do_sample": true, "eos_token_id": [200002, 199999, 200012],
      "pad_token_id": 199999, "transformers_version": "4.57.0.dev0"})",
                            "g", read);
    EXPECT_EQ(read, base);
    EXPECT_TRUE(notes_of(config).empty());
  }
}

TEST(hf_config, takes_transformers_defaults_where_its_writer_leaves_keys_out) {
  json config = without(without(without(hugging_face(), "swiglu_limit"), "layer_types"), "quantization_config");
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 32.0}};
  config["num_experts_per_tok"] = nullptr;
  const ModelConfig c = parse(config);
  EXPECT_EQ(c.swiglu_limit, 7.0);
  EXPECT_EQ(c.layer_kinds, alternating_layers(c.dims.layers));
  EXPECT_EQ(c.rope.beta_fast, 32);
  EXPECT_EQ(c.rope.beta_slow, 1);
  EXPECT_TRUE(c.rope.truncate);
  EXPECT_EQ(c.rope.original_context, 4096);
  EXPECT_EQ(c.dims.topk, 4);
}

TEST(hf_config, refuses_another_model_naming_type_and_architecture) {
  expect_refused(
      with(with(hugging_face(), "/model_type", "llama"), "/architectures", {"LlamaForCausalLM"}), Code::kUnsupported,
      R"(f: want model_type "gpt_oss" and architectures ["GptOssForCausalLM"], found "llama" and ["LlamaForCausalLM"])");
  expect_refused(with(hugging_face(), "/model_type", "llama"), Code::kUnsupported, R"(found "llama" and ["GptOss)");
  expect_refused(with(hugging_face(), "/architectures", {"Other"}), Code::kUnsupported,
                 R"(found "gpt_oss" and ["Other"])");
  expect_refused(json::object(), Code::kUnsupported, "found none and none");
  EXPECT_NO_THROW((void)parse(without(hugging_face(), "architectures")));
}

TEST(hf_config, refuses_each_missing_key) {
  for (const char* key : {"num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "vocab_size", "sliding_window", "num_local_experts",
                          "max_position_embeddings", "rms_norm_eps", "rope_theta"}) {
    expect_refused(without(hugging_face(), key), Code::kCorrupt, fmt::format("f: {} is missing", key));
  }
  const json all = original();
  for (const auto& [key, value] : all.items())
    if (key != "num_experts")
      expect_refused(without(original(), key), Code::kCorrupt, fmt::format("f: {} is missing", key));
  json config = without(without(hugging_face(), "experts_per_token"), "num_experts_per_tok");
  expect_refused(config, Code::kCorrupt, "f: num_experts_per_tok is missing");
}

TEST(hf_config, refuses_what_is_no_integer_in_range) {
  for (const char* key : {"/num_hidden_layers", "/hidden_size", "/intermediate_size", "/num_attention_heads",
                          "/num_key_value_heads", "/head_dim", "/vocab_size", "/sliding_window", "/num_local_experts",
                          "/max_position_embeddings", "/num_experts_per_tok"}) {
    for (const json& bad : {json(0), json(-1), json(int64_t{1} << 40), json(uint64_t{1} << 63)}) {
      expect_refused(with(hugging_face(), key, bad), Code::kCorrupt, fmt::format("f: {}: want 1 to ", key + 1));
      expect_refused(with(hugging_face(), key, bad), Code::kCorrupt, "found " + bad.dump());
    }
    for (const json& bad : {json(64.0), json("64"), json(true), json::array({64})}) {
      expect_refused(with(hugging_face(), key, bad), Code::kCorrupt,
                     fmt::format("f: {}: want an integer, found {}", key + 1, bad.dump()));
    }
  }
}

TEST(hf_config, refuses_what_is_no_number_in_range) {
  for (const char* key : {"/rms_norm_eps", "/swiglu_limit", "/rope_theta"}) {
    for (const json& bad : {json(0), json(-1.0), json(1e300)}) {
      expect_refused(with(hugging_face(), key, bad), Code::kCorrupt, fmt::format("f: {}: want ", key + 1));
      expect_refused(with(hugging_face(), key, bad), Code::kCorrupt, "found " + bad.dump());
    }
    expect_refused(with(hugging_face(), key, "7"), Code::kCorrupt,
                   fmt::format("f: {}: want a number, found \"7\"", key + 1));
  }
  for (const char* key : {"/rope_scaling/factor", "/rope_scaling/beta_fast", "/rope_scaling/beta_slow"})
    expect_refused(with(hugging_face(), key, 0), Code::kCorrupt, "f: rope_scaling: ");
  expect_error([] { (void)parse_hf_config(R"({"model_type":"gpt_oss","rms_norm_eps":NaN})", "f"); }, Code::kCorrupt,
               "f: want JSON, found none at line 1");
}

TEST(hf_config, refuses_rope_other_than_yarn_by_name) {
  expect_refused(with(hugging_face(), "/rope_scaling/rope_type", "llama3"), Code::kUnsupported,
                 R"(f: rope_scaling: rope_type: want "yarn", found "llama3")");
  expect_refused(without(hugging_face(), "rope_scaling"), Code::kUnsupported,
                 R"(f: want rope_scaling or rope_parameters of rope_type "yarn", found neither)");
  expect_refused(with(hugging_face(), "/rope_scaling/attention_factor", 1.5), Code::kUnsupported,
                 "f: rope_scaling: attention_factor: want none, found 1.5");
  expect_refused(with(hugging_face(), "/rope_scaling/rope_type", nullptr), Code::kCorrupt,
                 "f: rope_scaling: rope_type is missing");
  expect_refused(with(hugging_face(), "/rope_scaling/truncate", 0), Code::kCorrupt,
                 "f: rope_scaling: truncate: want true or false, found 0");
}

TEST(hf_config, refuses_malformed_layer_types) {
  expect_refused(with(hugging_face(), "/layer_types", "full"), Code::kCorrupt,
                 "f: layer_types: want a list, found \"full\"");
  expect_refused(with(hugging_face(), "/layer_types", {"full_attention"}), Code::kCorrupt,
                 "f: layer_types: want one per layer = 4, found 1");
  expect_refused(with(hugging_face(), "/layer_types/1", "linear_attention"), Code::kUnsupported,
                 "f: layer_types: want sliding_attention or full_attention, found \"linear_attention\"");
}

TEST(hf_config, refuses_variants_that_nothing_computes) {
  expect_refused(with(hugging_face(), "/attention_bias", false), Code::kUnsupported,
                 "f: attention_bias: want true, found false");
  expect_refused(with(hugging_face(), "/tie_word_embeddings", true), Code::kUnsupported,
                 "f: tie_word_embeddings: want false, found true");
  expect_refused(with(hugging_face(), "/hidden_act", "gelu"), Code::kUnsupported,
                 "f: hidden_act: want \"silu\", found \"gelu\"");
  expect_refused(with(hugging_face(), "/quantization_config/quant_method", "gptq"), Code::kUnsupported,
                 "f: quantization_config: quant_method: want \"mxfp4\", found \"gptq\"");
}

TEST(hf_config, refuses_values_that_nothing_computes) {
  for (const json& other : {json(1.0), json(1.7), json(-1)}) {
    expect_refused(with(hugging_face(), "/swiglu_alpha", other), Code::kUnsupported,
                   "f: swiglu_alpha: want 1.702, found " + other.dump());
    expect_refused(with(original(), "/swiglu_alpha", other), Code::kUnsupported, "f: swiglu_alpha: want 1.702");
  }
  EXPECT_TRUE(notes_of(with(hugging_face(), "/swiglu_alpha", 1.702)).empty());
  for (const char* key : {"/partial_rotary_factor", "/rope_scaling/partial_rotary_factor"}) {
    expect_refused(with(hugging_face(), key, 0.5), Code::kUnsupported, "partial_rotary_factor: want 1, found 0.5");
    EXPECT_TRUE(notes_of(with(hugging_face(), key, 1.0)).empty());
  }
  for (const char* key : {"/swiglu_limit", "/swiglu_alpha", "/partial_rotary_factor"}) {
    expect_refused(with(hugging_face(), key, nullptr), Code::kUnsupported,
                   fmt::format("f: {}: want a number, found null", key + 1));
  }
  for (const char* key : {"/rope_scaling/truncate", "/attention_bias"})
    expect_refused(with(hugging_face(), key, nullptr), Code::kUnsupported, "want true or false, found null");
}

TEST(hf_config, refuses_two_names_of_one_value_that_disagree) {
  const std::tuple<const char*, json, const char*> cases[] = {
      {"/num_experts", 16, "f: num_experts: want 32 as num_local_experts says, which is the same value, found 16"},
      {"/experts_per_token", 2, "f: experts_per_token: want 4 as num_experts_per_tok says"},
      {"/rope_scaling/rope_theta", 1e6, "f: rope_theta: want 1000000.0 as f: rope_scaling: rope_theta says"},
      {"/rope_scaling/type", "linear", "f: rope_scaling: type: want \"yarn\" as rope_type says"},
      {"/initial_context_length", 8192,
       "f: initial_context_length: want 4096 as f: rope_scaling: original_max_position_embeddings says"},
      {"/original_max_position_embeddings", 8192, "f: initial_context_length: want 8192 as original_max_position"},
      {"/rope_parameters", {{"rope_type", "yarn"}}, "f: rope_parameters: want {"},
  };
  for (const auto& [key, value, says] : cases) expect_refused(with(hugging_face(), key, value), Code::kCorrupt, says);
  expect_refused(with(with(hugging_face(), "/dtype", "float16"), "/torch_dtype", "bfloat16"), Code::kCorrupt,
                 "f: torch_dtype: want \"float16\" as dtype says");
  EXPECT_EQ(parse(without(with(hugging_face(), "/num_experts", 32), "num_local_experts")).dims.experts, 32);
  EXPECT_EQ(parse(with(hugging_face(), "/rope_scaling/rope_theta", 150000.0)).rope.theta, 150000);
}

TEST(hf_config, notes_keys_that_nobody_knows_in_one_line) {
  json config = with(with(hugging_face(), "/norm_topk_prob", false), "/_private", 1);
  config["logit_softcap\n"] = 30;
  config["rope_scaling"]["low_freq_factor"] = 1;
  const std::vector<std::string> notes = notes_of(config);
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_EQ(notes[0], "f: rope_scaling: not known here, so without effect: low_freq_factor");
  EXPECT_EQ(notes[1], "f: not known here, so without effect: logit_softcap\\n, norm_topk_prob");
  EXPECT_EQ(notes_of(with(original(), "/some_key", 1)),
            std::vector<std::string>{"f: not known here, so without effect: some_key"});
}

TEST(hf_config, refuses_token_ids_out_of_range) {
  expect_refused(with(hugging_face(), "/eos_token_id", -1), Code::kCorrupt,
                 "f: eos_token_id: want 0 to 201087, found -1");
  expect_refused(with(hugging_face(), "/eos_token_id", 201088), Code::kCorrupt,
                 "f: eos_token_id: want 0 to 201087, found 201088");
  expect_refused(with(hugging_face(), "/eos_token_id", {200002, 1 << 23}), Code::kCorrupt, "eos_token_id: want 0 to");
  expect_refused(with(hugging_face(), "/pad_token_id", "x"), Code::kCorrupt,
                 "f: pad_token_id: want an integer, found \"x\"");
}

TEST(hf_config, refuses_contradictions_by_the_files_own_names) {
  expect_refused(with(original(), "/experts_per_token", 129), Code::kCorrupt,
                 "f: experts_per_token: want at most num_experts = 128, found 129");
}

TEST(hf_config, refuses_an_original_context_that_overflows) {
  expect_refused(with(original(), "/rope_scaling_factor", 1e6), Code::kCorrupt,
                 "f: initial_context_length × rope_scaling_factor: want at most");
}

TEST(hf_config, reads_the_directory_and_lets_generation_config_win) {
  const ScratchDir dir;
  expect_error([&] { (void)read_hf_config(dir.path()); }, Code::kIo, "config.json");
  dir.write("config.json", hugging_face().dump());
  EXPECT_EQ(read_hf_config(dir.path()).config.eos_ids, std::vector<int32_t>{200002});
  dir.write(
      "generation_config.json",
      R"({"bos_token_id": 199998, "do_sample": true, "eos_token_id": [200002, 199999, 200012], "pad_token_id": 199999})");
  const ModelConfig c = read_hf_config(dir.path()).config;
  EXPECT_EQ(c.bos_id, 199998);
  EXPECT_EQ(c.eos_ids, (std::vector<int32_t>{200002, 199999, 200012}));
  dir.write("generation_config.json", R"({"eos_token_id": [201088]})");
  expect_error([&] { (void)read_hf_config(dir.path()); }, Code::kCorrupt,
               "generation_config.json: eos_token_id: want 0 to 201087, found 201088");
  dir.write("generation_config.json", R"({"eos_token_id": [1.5]})");
  expect_error([&] { (void)read_hf_config(dir.path()); }, Code::kCorrupt,
               "generation_config.json: eos_token_id: want an integer, found 1.5");
}

}  // namespace
}  // namespace nibble::model
