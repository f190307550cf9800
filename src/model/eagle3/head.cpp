#include "model/eagle3/head.h"

#include "base/dtype.h"
#include "base/error.h"
#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <utility>

namespace nibble::model::eagle3 {
namespace {

using backend::HostWeight;
using backend::WeightFormat;
using backend::WeightRole;
using checkpoint::Eagle3Config;
using checkpoint::Eagle3Rope;
using checkpoint::TensorEntry;

bool is_float(DType dtype) { return dtype == DType::kBf16 || dtype == DType::kF16 || dtype == DType::kF32; }

WeightFormat format_of(DType dtype) {
  return dtype == DType::kF32 ? WeightFormat::kF32 : dtype == DType::kF16 ? WeightFormat::kF16 : WeightFormat::kBf16;
}

template <class T>
T element(const RawTensor& tensor, int64_t at) {
  T value;
  std::memcpy(&value, tensor.bytes.data() + at * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// The tensors of the file, each taken once.
class Tensors {
 public:
  Tensors(const checkpoint::Checkpoint& files, std::string where) : files_(files), where_(std::move(where)) {}

  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] bool has(const std::string& name) const { return files_.find(name) != nullptr; }

  // Whether any name begins so.
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
  // One row, whether its shape says so or not.
  const RawTensor& row(const std::string& name, int64_t size) {
    Shape shape = {1, size};
    const TensorEntry* const found = files_.find(name);
    for (const Shape& other : {Shape{size}, Shape{1, 1, size}})
      if (found != nullptr && found->tensor.shape == other) shape = other;
    return take_floats(name, shape);
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

// Gives the head weights: of the outer ones, or of layer `layer`. Experts lead with their number, which is one.
void put(Head& head, WeightRole role, int layer, const RawTensor& tensor, const RawTensor* odd = nullptr) {
  backend::HostWeight weight{
      .role = role, .layer = layer, .format = format_of(tensor.dtype), .values = tensor, .scales = {}};
  if (odd != nullptr) weight.odd = *odd, weight.odd_format = format_of(odd->dtype);
  if (role == WeightRole::kGateUp || role == WeightRole::kGateUpBias || role == WeightRole::kDown ||
      role == WeightRole::kDownBias)
    for (RawTensor* each : {&weight.values, &weight.odd})
      if (!each->bytes.empty()) each->shape.insert(each->shape.begin(), 1);
  head.weights.push_back(std::move(weight));
}

void read_layer(Tensors& tensors, const Eagle3Config& c, int n, Head& head) {
  using enum WeightRole;
  const bool first = n == 0;
  std::string p = fmt::format("layers.{}.", n);
  if (first && !tensors.has_any(p)) p = "midlayer.";
  const int64_t hidden = c.hidden_size, read = (first ? 2 : 1) * hidden, kv = c.num_key_value_heads * c.head_dim;
  const int64_t q = c.num_attention_heads * c.head_dim, inter = c.intermediate_size;
  const auto take = [&](WeightRole role, std::string_view name, const Shape& shape) {
    put(head, role, n, tensors.take_floats(fmt::format("{}{}", p, name), shape));
  };
  const auto matrix = [&](WeightRole role, std::string_view name, const Shape& shape, WeightRole bias, bool biased) {
    take(role, fmt::format("{}.weight", name), shape);
    if (biased) take(bias, fmt::format("{}.bias", name), {shape[0]});
  };
  take(kAttnNorm, "input_layernorm.weight", {hidden});
  if (first) take(kHiddenNorm, "hidden_norm.weight", {hidden});
  take(kMlpNorm, "post_attention_layernorm.weight", {hidden});
  matrix(kQ, "self_attn.q_proj", {q, read}, kQBias, c.qkv_bias);
  matrix(kK, "self_attn.k_proj", {kv, read}, kKBias, c.qkv_bias);
  matrix(kV, "self_attn.v_proj", {kv, read}, kVBias, c.qkv_bias);
  matrix(kO, "self_attn.o_proj", {hidden, q}, kOBias, c.o_bias);
  matrix(kDown, "mlp.down_proj", {hidden, inter}, kDownBias, c.mlp_bias);
  const auto both = [&](WeightRole role, std::string_view what, const Shape& shape) {
    const RawTensor& up = tensors.take_floats(fmt::format("{}mlp.up_proj.{}", p, what), shape);
    put(head, role, n, tensors.take_floats(fmt::format("{}mlp.gate_proj.{}", p, what), shape), &up);
  };
  both(kGateUp, "weight", {inter, hidden});
  if (c.mlp_bias) both(kGateUpBias, "bias", {inter});
}

const HostWeight& weight_of(const Target& target, WeightRole role) {
  const auto found = std::ranges::find(target.weights, role, &HostWeight::role);
  check(found != target.weights.end(), "a bound model has all of its weights");
  return *found;
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

void read_vocabulary(Tensors& tensors, const Target& target, const Eagle3Config& c, Head& head) {
  const bool own = c.draft_vocab_size != c.vocab_size || tensors.has("lm_head.weight");
  const bool embeds = tensors.has("embed_tokens.weight");
  if ((!own || !embeds) && target.config.dims.hidden != c.hidden_size)
    throw Error(Code::kCorrupt,
                "{}: hidden_size: want the model's {}, as the head uses its embedding or lm_head, found {}", c.where,
                target.config.dims.hidden, c.hidden_size);
  const auto take = [&](WeightRole role, const char* name, int64_t rows) {
    put(head, role, -1, tensors.take_floats(name, {rows, c.hidden_size}));
  };
  if (embeds)
    take(WeightRole::kEmbedding, "embed_tokens.weight", c.vocab_size);
  else
    head.weights.push_back(shared(target, WeightRole::kEmbedding, tensors.where()));
  if (own)
    take(WeightRole::kUnembedding, "lm_head.weight", c.draft_vocab_size);
  else
    head.weights.push_back(shared(target, WeightRole::kUnembedding, tensors.where()));
  if (c.draft_vocab_size != c.vocab_size || tensors.has("d2t")) head.reads.target_ids = read_target_ids(tensors, c);
  if (tensors.has("t2d")) tensors.take("t2d", {c.vocab_size});  // which tokens a draft may hold: of use in training
}

void read_taps(Tensors& tensors, const Target& target, const Eagle3Config& c, Head& head) {
  using enum WeightRole;
  const int64_t taps = c.num_aux_hidden_states, width = taps * c.target_hidden_size;
  if (!c.use_aux_hidden_state) {  // it reads the model's last state, normed as the model norms it
    head.reads.tap_eps = target.config.rms_eps;
    HostWeight norm = weight_of(target, kFinalNorm);
    norm.role = kTapNorm;
    return head.weights.push_back(norm);
  }
  put(head, kTapFc, -1, tensors.take_floats("fc.weight", {c.hidden_size, width}));
  if (c.norm_before_fc) put(head, kTapNorm, -1, tensors.take_floats("input_norm.weight", {width}));
  if (c.fc_norm) {
    std::vector<float> norms;
    for (int64_t i = 0; i < taps; ++i) {
      const std::vector<float> own =
          backend::floats_of(tensors.take_floats(fmt::format("fc_norm.{}.weight", i), {c.target_hidden_size}));
      norms.insert(norms.end(), own.begin(), own.end());
    }
    const auto bytes = std::as_bytes(std::span(norms));
    const std::vector<std::byte>& kept = head.made_up.emplace_back(bytes.begin(), bytes.end());
    put(head, kTapNorm, -1, {.dtype = DType::kF32, .shape = {width}, .bytes = kept});
  }
  if (!c.mask_token_id) return;
  head.mask_token = static_cast<int32_t>(*c.mask_token_id);
  head.mask_hidden = backend::floats_of(tensors.row("mask_hidden", width));
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

ModelConfig config_of(const Eagle3Config& c, const backend::Dims& target) {
  const auto kind = c.sliding_window ? LayerKind::kSliding : LayerKind::kFull;
  ModelConfig config;
  config.dims = {.layers = c.num_hidden_layers,
                 .hidden = c.hidden_size,
                 .heads = c.num_attention_heads,
                 .kv_heads = c.num_key_value_heads,
                 .head_dim = c.head_dim,
                 .inter = c.intermediate_size,
                 .experts = 1,
                 .topk = 1,
                 .vocab = c.draft_vocab_size,
                 .sliding_window = c.sliding_window.value_or(backend::kPageTokens),
                 .max_context = target.max_context};
  config.rms_eps = static_cast<float>(c.rms_norm_eps);
  config.layer_kinds.assign(static_cast<size_t>(c.num_hidden_layers), kind);
  return config;
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

Head described(const Eagle3Config& c, const backend::Dims& target) {
  Head head;
  head.config = config_of(c, target);
  head.rope = rope_of(c);
  const int64_t taps = c.num_aux_hidden_states;
  head.reads = {.taps = c.use_aux_hidden_state ? taps : 1,
                .target_hidden = c.target_hidden_size,
                .target_vocab = c.vocab_size,
                .fc = c.use_aux_hidden_state,
                .tap_norms = c.fc_norm                                     ? taps
                             : c.norm_before_fc || !c.use_aux_hidden_state ? 1
                                                                           : 0,
                .tap_eps = static_cast<float>(c.rms_norm_eps),
                .norm_before_residual = c.norm_before_residual,
                .norm_output = c.norm_output};
  return head;
}

backend::HostWeight shared(const Target& target, WeightRole role, const std::string& where) {
  const HostWeight& weight = weight_of(target, role);
  if (!is_float(weight.values.dtype))
    throw Error(Code::kUnsupported, "{}: the head has no {} of its own: want the model's in bf16, f16 or f32, found {}",
                where, name_of(role), name_of(weight.format));
  return {.role = role, .format = format_of(weight.values.dtype), .values = weight.values, .scales = {}};
}

void fill_up(Head& head) {
  using enum WeightRole;
  const backend::Dims& d = head.config.dims;
  const auto made = [&](int64_t count, Bf16 value) -> RawTensor {
    const std::vector<Bf16> values(static_cast<size_t>(count), value);
    const auto bytes = std::as_bytes(std::span(values));
    const std::vector<std::byte>& kept = head.made_up.emplace_back(bytes.begin(), bytes.end());
    return {.dtype = DType::kBf16, .shape = {count}, .bytes = kept};
  };
  for (int n = 0; n < d.layers; ++n) {
    const auto has = [&](WeightRole role) {
      return std::ranges::any_of(head.weights, [&](const HostWeight& w) { return w.role == role && w.layer == n; });
    };
    for (const auto& [role, count] : {std::pair{kQBias, d.q_width()},
                                      {kKBias, d.kv_width()},
                                      {kVBias, d.kv_width()},
                                      {kOBias, d.hidden},
                                      {kDownBias, d.hidden}})
      if (!has(role)) put(head, role, n, made(count, {}));
    const RawTensor zeros = made(d.inter, {});
    if (!has(kGateUpBias)) put(head, kGateUpBias, n, zeros, &zeros);
    put(head, kSinks, n, made(d.heads, Bf16::from_float(-INFINITY)));
  }
}

Head load(const std::filesystem::path& directory, const Target& target, TapReading reading) {
  const Eagle3Config c = checkpoint::read_eagle3_config(directory);
  require_target(c, target.config);
  Head head = described(c, target.config.dims);
  head.boundaries = boundaries_of(c, target.config.dims.layers, reading);
  head.files.emplace(checkpoint::Checkpoint::open(directory));
  Tensors tensors(*head.files, directory.string());
  read_taps(tensors, target, c, head);
  for (int n = 0; n < c.num_hidden_layers; ++n) read_layer(tensors, c, n, head);
  put(head, WeightRole::kFinalNorm, -1, tensors.take_floats("norm.weight", {c.hidden_size}));
  read_vocabulary(tensors, target, c, head);
  tensors.refuse_others();
  fill_up(head);
  return head;
}

backend::BackendConfig backend_config(const Head& head, const StepLimits& limits) {
  return {.dims = head.config.dims,
          .layer_kinds = head.config.layer_kinds,
          .rope_inv_freq = head.rope.inv_freq,
          .rope_concentration = head.rope.concentration,
          .rms_eps = head.config.rms_eps,
          .dense = {},
          .max_tokens = limits.max_tokens,
          .max_rows = limits.max_rows,
          .kv_pages = limits.kv_pages,
          .head = head.reads};
}

}  // namespace nibble::model::eagle3
