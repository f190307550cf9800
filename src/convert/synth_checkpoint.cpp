#include "base/error.h"
#include "checkpoint/part_file.h"
#include "convert/synth.h"

#include <nlohmann/json.hpp>

#include <fstream>
#include <map>
#include <string>
#include <utility>

namespace nibble::convert {

using model::LayerKind;
using model::manifest;
using model::ManifestItem;
using model::ModelConfig;
using model::Naming;
using model::truncated;
using model::validate;
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int64_t kPieceBytes = 64 << 20;  // bounds the memory used while writing

struct Shard {
  std::string file;
  std::vector<ManifestItem> items;
  int64_t bytes = 0;
};

// A decimal as a person would write it: 1e-05, not 9.999999747378752e-06.
double shortest(float value) { return std::stod(fmt::format("{}", value)); }

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw Error(Code::kIo, "{}: cannot write", path.string());
}

std::vector<Shard> shards_of(const ModelConfig& config, int64_t shard_bytes) {
  std::vector<Shard> shards(1);
  for (ManifestItem& item : manifest(config, Naming::kHuggingFace)) {
    if (!shards.back().items.empty() && shards.back().bytes + item.bytes() > shard_bytes) shards.emplace_back();
    shards.back().bytes += item.bytes();
    shards.back().items.push_back(std::move(item));
  }
  if (shards.size() == 1) {
    shards[0].file = "model.safetensors";
    return shards;
  }
  // OpenAI counts its shards from 0 and names the last one's number, not their count.
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = fmt::format("model-{:05}-of-{:05}.safetensors", i, shards.size() - 1);
  }
  return shards;
}

std::string index_json(const std::vector<Shard>& shards, int64_t total_bytes) {
  std::map<std::string, std::string> weight_map;
  for (const Shard& shard : shards) {
    for (const ManifestItem& item : shard.items) weight_map[item.name] = shard.file;
  }
  const ordered_json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  return index.dump(2) + "\n";
}

}  // namespace

std::string config_json(const ModelConfig& config) {
  const backend::Dims& d = config.dims;
  ordered_json layer_types = ordered_json::array();
  for (const LayerKind kind : config.layer_kinds) {
    layer_types.push_back(kind == LayerKind::kSliding ? "sliding_attention" : "full_attention");
  }
  ordered_json json = {{"architectures", {"GptOssForCausalLM"}},
                       {"attention_bias", true},
                       {"attention_dropout", 0.0},
                       {"experts_per_token", d.topk},
                       {"head_dim", d.head_dim},
                       {"hidden_act", "silu"},
                       {"hidden_size", d.hidden},
                       {"initial_context_length", config.rope.original_context},
                       {"initializer_range", 0.02},
                       {"intermediate_size", d.inter},
                       {"layer_types", layer_types},
                       {"max_position_embeddings", d.max_context},
                       {"model_type", "gpt_oss"},
                       {"num_attention_heads", d.heads},
                       {"num_experts_per_tok", d.topk},
                       {"num_hidden_layers", d.layers},
                       {"num_key_value_heads", d.kv_heads},
                       {"num_local_experts", d.experts},
                       {"output_router_logits", false},
                       {"rms_norm_eps", shortest(config.rms_eps)},
                       {"rope_scaling",
                        {{"beta_fast", config.rope.beta_fast},
                         {"beta_slow", config.rope.beta_slow},
                         {"factor", config.rope.factor},
                         {"original_max_position_embeddings", config.rope.original_context},
                         {"rope_type", "yarn"},
                         {"truncate", config.rope.truncate}}},
                       {"rope_theta", config.rope.theta},
                       {"router_aux_loss_coef", 0.9},
                       {"sliding_window", d.sliding_window},
                       {"swiglu_limit", shortest(config.swiglu_limit)},
                       {"tie_word_embeddings", false},
                       {"torch_dtype", "bfloat16"},
                       {"use_cache", true},
                       {"vocab_size", d.vocab}};
  json["quantization_config"] = {
      {"modules_to_not_convert",
       {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"}},
      {"quant_method", "mxfp4"}};
  if (!config.eos_ids.empty()) json["eos_token_id"] = config.eos_ids.front();
  if (config.pad_id) json["pad_token_id"] = *config.pad_id;
  return json.dump(2) + "\n";
}

std::string generation_config_json(const ModelConfig& config) {
  ordered_json json;
  if (config.bos_id) json["bos_token_id"] = *config.bos_id;
  json["do_sample"] = true;
  if (!config.eos_ids.empty()) json["eos_token_id"] = config.eos_ids;
  if (config.pad_id) json["pad_token_id"] = *config.pad_id;
  return json.dump(2) + "\n";
}

void synth_checkpoint(const ModelConfig& config, const fs::path& directory, const SynthOptions& options,
                      const std::function<void(const SynthProgress&)>& progress) {
  const ModelConfig model = options.layers == 0 ? config : truncated(config, options.layers);
  validate(model);
  if (options.shard_bytes <= 0) {
    throw Error(Code::kInvalidRequest, "shard_bytes: want at least 1, found {}", options.shard_bytes);
  }
  checkpoint::NewDirectory made(directory);
  const std::vector<Shard> shards = shards_of(model, options.shard_bytes);
  int64_t total_bytes = 0, done_bytes = 0;
  for (const Shard& shard : shards) total_bytes += shard.bytes;

  for (const Shard& shard : shards) {
    std::vector<checkpoint::TensorSpec> specs;
    for (const ManifestItem& item : shard.items) specs.push_back({item.name, item.dtype, item.shape});
    const checkpoint::SafetensorsPlan plan{
        .tensors = specs, .metadata = {{"format", "pt"}}, .piece_bytes = kPieceBytes};
    checkpoint::write_safetensors(directory / shard.file, plan, [&](const checkpoint::TensorPiece& piece) {
      fill_synthetic(shard.items[piece.tensor_idx], options.seed,
                     {.offset_bytes = piece.offset_bytes, .bytes = piece.bytes}, options.pool);
      done_bytes += static_cast<int64_t>(piece.bytes.size());
      if (progress) progress({.file = shard.file, .done_bytes = done_bytes, .total_bytes = total_bytes});
    });
  }
  if (shards.size() > 1) write_file(directory / "model.safetensors.index.json", index_json(shards, total_bytes));
  if (!options.tokenizer_json.empty()) write_file(directory / "tokenizer.json", options.tokenizer_json);
  write_file(directory / "generation_config.json", generation_config_json(model));
  write_file(directory / "config.json", config_json(model));
  made.keep();
}

}  // namespace nibble::convert
