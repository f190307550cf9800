#include "convert/synth.h"

#include "base/dtype.h"
#include "base/error.h"
#include "base/random.h"
#include "checkpoint/part_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <new>
#include <utility>

namespace nibble::convert {

using model::bind_weights;
using model::LayerKind;
using model::manifest;
using model::ManifestItem;
using model::ModelConfig;
using model::Naming;
using model::Part;
using model::truncated;
using model::validate;
using model::WeightRole;
namespace {

using enum WeightRole;

constexpr size_t kAlignment = 64;
constexpr size_t kWords = 512;  // drawn at a time: 4 KB, which stays in the first cache

// FNV-1a: keeps the streams of two tensors apart.
constexpr uint64_t hash_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

// One tensor's random words. Philox gives the key; the words are SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) of it and
// their index: as free of state as Philox and several times cheaper, which matters for 63 GB of experts.
class Stream {
 public:
  Stream(uint64_t seed, std::string_view tensor) {
    const Philox4 words = philox(seed, 0, hash_of(tensor));
    key_ = words[0] | uint64_t{words[1]} << 32;
  }

  void draw(int64_t first, std::span<uint64_t> words) const {
    uint64_t state = key_ + static_cast<uint64_t>(first) * kGamma;
    for (uint64_t& word : words) {
      state += kGamma;
      uint64_t z = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
      word = z ^ (z >> 31);
    }
  }

 private:
  static constexpr uint64_t kGamma = 0x9e3779b97f4a7c15u;
  uint64_t key_;
};

struct Normal {
  float mean, std;
};

Normal distribution_of(const ManifestItem& item) {
  check(!has_experts(item.role) || !is_matrix(item.role), "experts are not dense");
  const float per_fan_in = 1.0f / std::sqrt(static_cast<float>(item.shape.back()));
  switch (item.role) {
    // Large beside what layers add, and biases small: what tokens share would draw all of them to the same experts.
    case kEmbedding: return {0, 4};
    case kSinks: return {0, 1};
    case kUnembedding: return {0, 4 * per_fan_in};
    case kFinalNorm:
    case kAttnNorm:
    case kMlpNorm: return {1, 0.1f};
    default: return {0, is_matrix(item.role) ? per_fan_in : 0.05f};
  }
}

// Fills the piece on all threads: make(words, out) turns some words into bytes_per_word bytes each; the last word's
// bytes may be cut short by the end of the piece.
template <int64_t bytes_per_word, class Make>
void fill_from_words(const Stream& stream, const SynthPiece& piece, ThreadPool* pool, const Make& make) {
  const int64_t first = piece.offset_bytes / bytes_per_word;
  const auto bytes = static_cast<int64_t>(piece.bytes.size());
  const auto run = [&](IndexRange range) {
    uint64_t words[kWords];
    std::byte made[kWords * bytes_per_word];
    for (int64_t at = range.begin; at < range.end;) {
      const int64_t count = std::min(range.end - at, static_cast<int64_t>(kWords));
      const std::span some(words, static_cast<size_t>(count));
      stream.draw(first + at, some);
      make(some, made);
      const int64_t offset = at * bytes_per_word;
      std::memcpy(piece.bytes.data() + offset, made,
                  static_cast<size_t>(std::min(count * bytes_per_word, bytes - offset)));
      at += count;
    }
  };
  parallel_for(pool, (bytes + bytes_per_word - 1) / bytes_per_word, run);
}

// The sum of a word's four bytes, centred: near to normal, exact in integers and cheap, so no libm decides the bits.
float centred_byte_sum(uint32_t word) {
  const uint32_t pairs = (word & 0x00ff00ffu) + ((word >> 8) & 0x00ff00ffu);
  return static_cast<float>(static_cast<int32_t>((pairs & 0xffffu) + (pairs >> 16)) - 510);
}
constexpr float kByteSumStd = 147.80054f;  // sqrt(4 (256² - 1) / 12)

void fill_dense(const Stream& stream, Normal normal, const SynthPiece& piece, ThreadPool* pool) {
  const float scale = normal.std / kByteSumStd;
  // Product and sum are rounded apart: this file is compiled without fused multiply-add.
  const auto value = [&](uint64_t half) {
    return Bf16::from_float(normal.mean + scale * centred_byte_sum(static_cast<uint32_t>(half)));
  };
  fill_from_words<2 * sizeof(Bf16)>(stream, piece, pool, [&](std::span<const uint64_t> words, std::byte* out) {
    for (size_t i = 0; i < words.size(); ++i) {
      const Bf16 pair[2] = {value(words[i]), value(words[i] >> 32)};
      std::memcpy(out + i * sizeof pair, pair, sizeof pair);
    }
  });
}

void fill_codes(const Stream& stream, const SynthPiece& piece, ThreadPool* pool) {
  fill_from_words<8>(stream, piece, pool, [](std::span<const uint64_t> words, std::byte* out) {
    std::memcpy(out, words.data(), words.size_bytes());
  });
}

// E8M0 high and high-1, drawn so that the mean square of code · 2^(e-127) is 1/fan_in.
struct ScaleMix {
  int high;
  int high_of_256;  // how many of 256 bytes draw the high one
};

ScaleMix scale_mix_for(int64_t fan_in) {
  constexpr double kCodeMeanSquare = 68.5 / 8;  // (0² + .5² + 1² + 1.5² + 2² + 3² + 4² + 6²) / 8
  const double want = 1.0 / (static_cast<double>(fan_in) * kCodeMeanSquare);
  int exponent = 0;  // 4^exponent >= want > 4^(exponent-1)
  while (std::ldexp(1.0, 2 * (exponent - 1)) >= want) --exponent;
  const double high = std::ldexp(1.0, 2 * exponent), low = high / 4;
  return {127 + exponent, static_cast<int>(std::lround(256 * (want - low) / (high - low)))};
}

void fill_scales(const Stream& stream, ScaleMix mix, const SynthPiece& piece, ThreadPool* pool) {
  const auto high = static_cast<uint8_t>(mix.high);
  fill_from_words<8>(stream, piece, pool, [&](std::span<const uint64_t> words, std::byte* out) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(words.data());
    for (size_t i = 0; i < words.size_bytes(); ++i)
      out[i] = static_cast<std::byte>(high - (bytes[i] >= mix.high_of_256 ? 1 : 0));
  });
}

int64_t aligned(int64_t bytes) {
  constexpr auto kStep = static_cast<int64_t>(kAlignment);
  return (bytes + kStep - 1) / kStep * kStep;
}

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
  for (size_t i = 0; i < shards.size(); ++i)
    shards[i].file = fmt::format("model-{:05}-of-{:05}.safetensors", i, shards.size() - 1);
  return shards;
}

}  // namespace

void fill_synthetic(const ManifestItem& item, uint64_t seed, const SynthPiece& piece, ThreadPool* pool) {
  check(piece.offset_bytes % 8 == 0, "a piece begins on a whole word");
  const Stream stream(seed, item.name);
  if (item.dtype == DType::kBf16) return fill_dense(stream, distribution_of(item), piece, pool);
  if (item.part == Part::kValues) return fill_codes(stream, piece, pool);
  fill_scales(stream, scale_mix_for(item.shape.back() * 32), piece, pool);
}

void DummyWeights::Free::operator()(std::byte* bytes) const { ::operator delete(bytes, std::align_val_t{kAlignment}); }

DummyWeights::DummyWeights(const ModelConfig& config, uint64_t seed, ThreadPool* pool) {
  validate(config);
  const std::vector<ManifestItem> items = manifest(config, Naming::kHuggingFace);
  int64_t reserved = 0;
  for (const ManifestItem& item : items) {
    total_bytes_ += item.bytes();
    reserved += aligned(item.bytes());
  }
  auto* memory = ::operator new(static_cast<size_t>(reserved), std::align_val_t{kAlignment}, std::nothrow);
  if (memory == nullptr) throw Error(Code::kOutOfMemory, "cannot allocate {} bytes of dummy weights", reserved);
  memory_.reset(static_cast<std::byte*>(memory));

  std::vector<checkpoint::TensorEntry> entries;
  std::byte* at = memory_.get();
  for (const ManifestItem& item : items) {
    const std::span bytes(at, static_cast<size_t>(item.bytes()));
    fill_synthetic(item, seed, {.offset_bytes = 0, .bytes = bytes}, pool);
    entries.push_back({item.name, {.dtype = item.dtype, .shape = item.shape, .bytes = bytes}});
    at += aligned(item.bytes());
  }
  weights_ = bind_weights(entries, config, {.check_scales = false});
}

ordered_json quantization_config() {
  return {{"modules_to_not_convert",
           {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"}},
          {"quant_method", "mxfp4"}};
}

std::string index_json(const ordered_json& weight_map, int64_t total_bytes) {
  return ordered_json{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}}.dump(2) + "\n";
}

std::string config_json(const ModelConfig& config) {
  nlohmann::json sorted = {{"architectures", {"GptOssForCausalLM"}},
                           {"attention_bias", true},
                           {"attention_dropout", 0.0},
                           {"experts_per_token", config.dims.topk},
                           {"hidden_act", "silu"},
                           {"initial_context_length", config.rope.original_context},
                           {"initializer_range", 0.02},
                           {"model_type", "gpt_oss"},
                           {"output_router_logits", false},
                           {"rope_scaling", {{"rope_type", "yarn"}, {"truncate", config.rope.truncate}}},
                           {"router_aux_loss_coef", 0.9},
                           {"tie_word_embeddings", false},
                           {"torch_dtype", "bfloat16"},
                           {"use_cache", true}};
  const bool differ = config.dims.wide_window > 0 || !config.layer_experts.empty();
  if (differ) sorted["architectures"] = {"GptOssPuzzleForCausalLM"}, sorted["model_type"] = "gpt_oss_puzzle";
  for (const model::LayerConfig& layer : layers_of(config)) {
    sorted["layer_types"].push_back(layer.window > 0 ? "sliding_attention" : "full_attention");
    if (differ)
      sorted["block_configs"].push_back(
          {{"num_local_experts", layer.experts},
           {"sliding_window", layer.window > 0 ? nlohmann::json(layer.window) : nlohmann::json()}});
  }
  for (const model::ConfigField& field : model::kConfigFields) {
    using D = backend::Dims;
    if (differ && (&field == &model::field_of(&D::experts) || &field == &model::field_of(&D::sliding_window))) continue;
    const bool at_top = !field.is_of_rope() || &field == &model::field_of(&model::RopeConfig::theta);
    nlohmann::json& value = (at_top ? sorted : sorted["rope_scaling"])[std::string(field.names[0])];
    if (field.is_integer())
      value = static_cast<int64_t>(field.of(config));
    else
      value = field.is_of_rope() ? field.of(config) : shortest(static_cast<float>(field.of(config)));
  }
  ordered_json json = sorted;
  json["quantization_config"] = quantization_config();
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
  if (options.shard_bytes <= 0)
    throw Error(Code::kInvalidRequest, "shard_bytes: want at least 1, found {}", options.shard_bytes);
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
  if (shards.size() > 1) {
    std::map<std::string, std::string> weight_map;
    for (const Shard& shard : shards)
      for (const ManifestItem& item : shard.items) weight_map[item.name] = shard.file;
    made.write("model.safetensors.index.json", index_json(weight_map, total_bytes));
  }
  if (!options.tokenizer_json.empty()) made.write("tokenizer.json", options.tokenizer_json);
  made.write("generation_config.json", generation_config_json(model));
  made.write("config.json", config_json(model));
  made.keep();
}

}  // namespace nibble::convert
