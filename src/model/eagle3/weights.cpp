#include "model/eagle3/weights.h"

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "model/config.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <string>
#include <utility>

namespace nibble::model::eagle3 {
namespace {

using backend::HostWeight;
using backend::WeightRole;
using checkpoint::Eagle3Config;
using checkpoint::Eagle3Rope;
using checkpoint::TensorEntry;

bool is_float(DType dtype) { return dtype == DType::kBf16 || dtype == DType::kF16 || dtype == DType::kF32; }

template <class T>
T element(const RawTensor& tensor, int64_t at) {
  T value;
  std::memcpy(&value, tensor.bytes.data() + at * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

std::vector<float> floats(const RawTensor& tensor) {
  int64_t count = 1;
  for (const int64_t dim : tensor.shape) count *= dim;
  std::vector<float> out(static_cast<size_t>(count));
  Matrix{.values = {tensor.dtype, {1, count}, tensor.bytes}, .bias = {}}.decode(0, out.data());
  return out;
}

// The tensors of the file, each taken once.
class Tensors {
 public:
  Tensors(const checkpoint::Checkpoint& files, std::string where) : files_(files), where_(std::move(where)) {}

  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] bool has(const std::string& name) const { return files_.find(name) != nullptr; }

  // Of names that begin so.
  [[nodiscard]] bool has_any(const std::string& prefix) const {
    return std::ranges::any_of(files_.entries(),
                               [&](const TensorEntry& entry) { return entry.name.starts_with(prefix); });
  }

  const RawTensor& take(const std::string& name, const Shape& shape) {
    const TensorEntry* const found = files_.find(name);
    if (found == nullptr)
      throw Error(Code::kCorrupt, "{}: {}: want {}, found no such tensor", where_, name,
                  checkpoint::describe(DType::kBf16, shape));
    taken_.insert(name);
    if (found->tensor.shape != shape)
      throw Error(Code::kCorrupt, "{}: {}: want {}, found {}", where_, name,
                  checkpoint::describe(found->tensor.dtype, shape),
                  checkpoint::describe(found->tensor.dtype, found->tensor.shape));
    return found->tensor;
  }
  const RawTensor& take_floats(const std::string& name, const Shape& shape) {
    const RawTensor& tensor = take(name, shape);
    if (!is_float(tensor.dtype))
      throw Error(Code::kCorrupt, "{}: {}: want BF16, F16 or F32, found {}", where_, name, name_of(tensor.dtype));
    return tensor;
  }
  std::vector<float> vector(const std::string& name, int64_t size) { return floats(take_floats(name, {size})); }

  enum class Bias : uint8_t { kNone, kHas };
  // One row, whether its shape says so or not.
  std::vector<float> row(const std::string& name, int64_t size) {
    Shape shape = {1, size};
    const TensorEntry* const found = files_.find(name);
    for (const Shape& other : {Shape{size}, Shape{1, 1, size}})
      if (found != nullptr && found->tensor.shape == other) shape = other;
    return floats(take_floats(name, shape));
  }

  Matrix matrix(const std::string& name, const Shape& shape, Bias bias = Bias::kNone) {
    return {take_floats(name + ".weight", shape),
            bias == Bias::kHas ? vector(name + ".bias", shape[0]) : std::vector<float>()};
  }

  void refuse_others() const {
    for (const TensorEntry& entry : files_.entries()) {
      if (!taken_.contains(entry.name))
        throw Error(Code::kCorrupt, "{}: {}: want no such tensor in a head of this config.json, found {}", where_,
                    entry.name, checkpoint::describe(entry.tensor.dtype, entry.tensor.shape));
    }
  }

 private:
  const checkpoint::Checkpoint& files_;
  std::string where_;
  std::set<std::string, std::less<>> taken_;
};

Tensors::Bias has(bool bias) { return bias ? Tensors::Bias::kHas : Tensors::Bias::kNone; }

Layer read_layer(Tensors& tensors, const Eagle3Config& c, int64_t n) {
  const bool first = n == 0;
  std::string p = fmt::format("layers.{}.", n);
  if (first && !tensors.has_any(p)) p = "midlayer.";
  const int64_t read = (first ? 2 : 1) * c.hidden_size, kv = c.num_key_value_heads * c.head_dim;
  const int64_t q = c.num_attention_heads * c.head_dim;
  Layer layer;
  layer.input_norm = tensors.vector(p + "input_layernorm.weight", c.hidden_size);
  if (first) layer.hidden_norm = tensors.vector(p + "hidden_norm.weight", c.hidden_size);
  layer.post_attention_norm = tensors.vector(p + "post_attention_layernorm.weight", c.hidden_size);
  layer.q = tensors.matrix(p + "self_attn.q_proj", {q, read}, has(c.qkv_bias));
  layer.k = tensors.matrix(p + "self_attn.k_proj", {kv, read}, has(c.qkv_bias));
  layer.v = tensors.matrix(p + "self_attn.v_proj", {kv, read}, has(c.qkv_bias));
  layer.o = tensors.matrix(p + "self_attn.o_proj", {c.hidden_size, q}, has(c.o_bias));
  layer.gate = tensors.matrix(p + "mlp.gate_proj", {c.intermediate_size, c.hidden_size}, has(c.mlp_bias));
  layer.up = tensors.matrix(p + "mlp.up_proj", {c.intermediate_size, c.hidden_size}, has(c.mlp_bias));
  layer.down = tensors.matrix(p + "mlp.down_proj", {c.hidden_size, c.intermediate_size}, has(c.mlp_bias));
  return layer;
}

const HostWeight& weight_of(const Target& target, WeightRole role) {
  const auto found = std::ranges::find(target.weights, role, &HostWeight::role);
  check(found != target.weights.end(), "a bound model has all of its weights");
  return *found;
}

const RawTensor& shared(const Target& target, WeightRole role, const std::string& where) {
  const HostWeight& weight = weight_of(target, role);
  if (!is_float(weight.values.dtype))
    throw Error(Code::kUnsupported, "{}: the head has no {} of its own: want the model's in bf16, f16 or f32, found {}",
                where, name_of(role), name_of(weight.format));
  return weight.values;
}

// d2t[i] is how far row i of lm_head is from its token of the target.
std::vector<int32_t> read_target_ids(Tensors& tensors, const Eagle3Config& c) {
  const RawTensor& d2t = tensors.take("d2t", {c.draft_vocab_size});
  if (d2t.dtype != DType::kI64 && d2t.dtype != DType::kI32)
    throw Error(Code::kCorrupt, "{}: d2t: want I64 or I32, found {}", tensors.where(), name_of(d2t.dtype));
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < c.draft_vocab_size; ++i) {
    const int64_t offset = d2t.dtype == DType::kI64 ? element<int64_t>(d2t, i) : element<int32_t>(d2t, i);
    if (offset < -i || offset >= c.vocab_size - i)
      throw Error(Code::kCorrupt, "{}: d2t: want row {} to name a token below {}, found an offset of {}",
                  tensors.where(), i, c.vocab_size, offset);
    ids.push_back(static_cast<int32_t>(i + offset));
  }
  return ids;
}

void read_vocabulary(Tensors& tensors, const Target& target, const Eagle3Config& c, Weights& w) {
  if (tensors.has("embed_tokens.weight"))
    w.embedding = {tensors.take_floats("embed_tokens.weight", {c.vocab_size, c.hidden_size}), {}};
  else
    w.embedding = shared_embedding(target, tensors.where());
  const bool own = c.draft_vocab_size != c.vocab_size || tensors.has("lm_head.weight");
  w.lm_head = own ? Matrix{tensors.take_floats("lm_head.weight", {c.draft_vocab_size, c.hidden_size}), {}}
                  : Matrix{shared(target, WeightRole::kUnembedding, tensors.where()), {}};
  if (w.embedding.cols() != c.hidden_size || w.lm_head.cols() != c.hidden_size)
    throw Error(Code::kCorrupt,
                "{}: hidden_size: want the model's {}, as the head uses its embedding or lm_head, found {}", c.where,
                target.config.dims.hidden, c.hidden_size);
  if (c.draft_vocab_size != c.vocab_size || tensors.has("d2t")) w.target_ids = read_target_ids(tensors, c);
  if (tensors.has("t2d")) tensors.take("t2d", {c.vocab_size});  // which tokens a draft may hold: of use in training
}

void read_taps(Tensors& tensors, const Target& target, const Eagle3Config& c, Weights& w) {
  const int64_t taps = c.num_aux_hidden_states, width = taps * c.target_hidden_size;
  if (!c.use_aux_hidden_state) {
    w.target_norm = floats(weight_of(target, WeightRole::kFinalNorm).values);
    w.target_eps = target.config.rms_eps;
    return;
  }
  w.fc = tensors.matrix("fc", {c.hidden_size, width});
  if (c.norm_before_fc) w.tap_norms.push_back(tensors.vector("input_norm.weight", width));
  for (int64_t i = 0; c.fc_norm && i < taps; ++i)
    w.tap_norms.push_back(tensors.vector(fmt::format("fc_norm.{}.weight", i), c.target_hidden_size));
  if (!c.mask_token_id) return;
  w.mask_token = static_cast<int32_t>(*c.mask_token_id);
  w.mask_hidden = tensors.row("mask_hidden", width);
}

RopeTable rope_of(const Eagle3Config& c) {
  switch (c.rope) {
    case Eagle3Rope::kPlain: return plain_rope(c.rope_theta, c.head_dim);
    case Eagle3Rope::kLlama3:
      return llama3_rope({.theta = c.rope_theta,
                          .factor = c.rope_factor,
                          .low_rotations = c.rope_low_freq_factor,
                          .high_rotations = c.rope_high_freq_factor,
                          .original_context = c.rope_original_context},
                         c.head_dim);
    case Eagle3Rope::kYarn:
      return yarn_rope({.theta = c.rope_theta,
                        .factor = c.rope_factor,
                        .beta_fast = c.rope_beta_fast,
                        .beta_slow = c.rope_beta_slow,
                        .original_context = c.rope_original_context,
                        .truncate = c.rope_truncate},
                       c.head_dim);
  }
  return {};
}

backend::HeadDims dims_of(const Eagle3Config& c) {
  return {.hidden = c.hidden_size,
          .target_hidden = c.target_hidden_size,
          .taps = c.use_aux_hidden_state ? c.num_aux_hidden_states : 1,
          .heads = c.num_attention_heads,
          .kv_heads = c.num_key_value_heads,
          .head_dim = c.head_dim,
          .inter = c.intermediate_size,
          .vocab = c.vocab_size,
          .draft_vocab = c.draft_vocab_size};
}

void require_target(const Eagle3Config& c, const ModelConfig& target) {
  const auto require = [&](const char* key, int64_t found, int64_t want) {
    if (found != want) throw Error(Code::kCorrupt, "{}: {}: want the model's {}, found {}", c.where, key, want, found);
  };
  require("vocab_size", c.vocab_size, target.dims.vocab);
  require(c.target_hidden_size == c.hidden_size ? "hidden_size" : "target_hidden_size", c.target_hidden_size,
          target.dims.hidden);
  if (!c.use_aux_hidden_state) require("hidden_size", c.hidden_size, target.dims.hidden);
}

}  // namespace

std::vector<int> boundaries_of(const Eagle3Config& config, int64_t layers, TapReading reading) {
  const auto last = static_cast<int>(layers);
  if (!config.use_aux_hidden_state) return {last};
  // Three, as vLLM, SGLang and TensorRT-LLM take them where a head names none.
  std::vector<int> boundaries = {2, last / 2, last - 3};
  if (config.layer_ids) {
    const std::vector<int64_t>& ids = *config.layer_ids;
    const bool outputs = reading == TapReading::kAuto ? ids.back() != layers : reading == TapReading::kOutputs;
    boundaries.clear();
    for (const int64_t id : ids) boundaries.push_back(static_cast<int>(id + (outputs ? 1 : 0)));
  }
  const bool rising = std::ranges::adjacent_find(boundaries, std::greater_equal<>()) == boundaries.end();
  if (!rising || boundaries.front() < 0 || boundaries.back() > last)
    throw Error(Code::kCorrupt, "{}: want states of 0 to {}, the model's layers, rising; found {}", config.where, last,
                fmt::join(boundaries, ", "));
  return boundaries;
}

Matrix shared_embedding(const Target& target, const std::string& where) {
  return {shared(target, WeightRole::kEmbedding, where), {}};
}

Weights load(const std::filesystem::path& directory, const Target& target, TapReading reading) {
  const Eagle3Config c = checkpoint::read_eagle3_config(directory);
  require_target(c, target.config);
  Weights w;
  w.boundaries = boundaries_of(c, target.config.dims.layers, reading);
  w.files.emplace(checkpoint::Checkpoint::open(directory));
  w.dims = dims_of(c);
  w.rms_eps = c.rms_norm_eps;
  w.logit_scale = c.logit_scale;
  w.sliding_window = c.sliding_window;
  w.norm_before_residual = c.norm_before_residual;
  w.norm_output = c.norm_output;
  RopeTable rope = rope_of(c);
  w.rope_inv_freq = std::move(rope.inv_freq);
  w.rope_concentration = rope.concentration;
  Tensors tensors(*w.files, directory.string());
  read_taps(tensors, target, c, w);
  for (int64_t n = 0; n < c.num_hidden_layers; ++n) w.layers.push_back(read_layer(tensors, c, n));
  w.norm = tensors.vector("norm.weight", c.hidden_size);
  read_vocabulary(tensors, target, c, w);
  tensors.refuse_others();
  return w;
}

}  // namespace nibble::model::eagle3
