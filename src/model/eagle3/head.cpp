#include "model/eagle3/head.h"

#include "base/dtype.h"
#include "base/error.h"
#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

namespace nibble::model::eagle3 {
namespace {

using backend::HostWeight;
using backend::WeightFormat;
using backend::WeightRole;
using checkpoint::TensorEntry;

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
    if (!backend::is_float(tensor.dtype))
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
    for (const TensorEntry& entry : files_.entries())
      if (!taken_.contains(entry.name))
        throw Error(Code::kCorrupt, "{}: {}: want no such tensor in a head of this config.json, found {}", where_,
                    entry.name, checkpoint::describe(entry.tensor.dtype, entry.tensor.shape));
  }

 private:
  const checkpoint::Checkpoint& files_;
  std::string where_;
  std::set<std::string, std::less<>> taken_;
};

// Gives the head weights: of the outer ones, or of layer `layer`. Experts lead with their number, which is one.
void put(Head& head, WeightRole role, int layer, const RawTensor& tensor, const RawTensor* odd = nullptr) {
  backend::HostWeight weight{
      .role = role, .layer = layer, .format = backend::format_of(tensor.dtype), .values = tensor, .scales = {}};
  if (odd != nullptr) weight.odd = *odd, weight.odd_format = backend::format_of(odd->dtype);
  if (role == WeightRole::kGateUp || role == WeightRole::kGateUpBias || role == WeightRole::kDown ||
      role == WeightRole::kDownBias)
    for (RawTensor* each : {&weight.values, &weight.odd})
      if (!each->bytes.empty()) each->shape.insert(each->shape.begin(), 1);
  head.weights.push_back(std::move(weight));
}

void read_layer(Tensors& tensors, int n, Head& head) {
  using enum WeightRole;
  const bool first = n == 0;
  std::string p = fmt::format("layers.{}.", n);
  if (first && !tensors.has_any(p)) p = "midlayer.";
  const backend::Dims& d = head.config.dims;
  const int64_t hidden = d.hidden, read = (first ? 2 : 1) * hidden, kv = d.kv_width(), q = d.q_width(), inter = d.inter;
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
  matrix(kQ, "self_attn.q_proj", {q, read}, kQBias, head.qkv_bias);
  matrix(kK, "self_attn.k_proj", {kv, read}, kKBias, head.qkv_bias);
  matrix(kV, "self_attn.v_proj", {kv, read}, kVBias, head.qkv_bias);
  matrix(kO, "self_attn.o_proj", {hidden, q}, kOBias, head.o_bias);
  matrix(kDown, "mlp.down_proj", {hidden, inter}, kDownBias, head.mlp_bias);
  const auto both = [&](WeightRole role, std::string_view what, const Shape& shape) {
    const RawTensor& up = tensors.take_floats(fmt::format("{}mlp.up_proj.{}", p, what), shape);
    put(head, role, n, tensors.take_floats(fmt::format("{}mlp.gate_proj.{}", p, what), shape), &up);
  };
  both(kGateUp, "weight", {inter, hidden});
  if (head.mlp_bias) both(kGateUpBias, "bias", {inter});
}

const HostWeight& weight_of(const Target& target, WeightRole role) {
  const auto found = std::ranges::find(target.weights, role, &HostWeight::role);
  check(found != target.weights.end(), "a bound model has all of its weights");
  return *found;
}

// d2t[i] is how far row i of lm_head is from its token of the target.
std::vector<int32_t> read_target_ids(Tensors& tensors, const Head& head) {
  const int64_t rows = head.config.dims.vocab, vocab = head.reads.target_vocab;
  const RawTensor& d2t = tensors.take("d2t", {rows});
  if (d2t.dtype != DType::kI64 && d2t.dtype != DType::kI32)
    throw Error(Code::kCorrupt, "{}: d2t: want I64 or I32, found {}", tensors.where(), name_of(d2t.dtype));
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t offset = d2t.dtype == DType::kI64 ? element<int64_t>(d2t, i) : element<int32_t>(d2t, i);
    if (offset < -i || offset >= vocab - i)
      throw Error(Code::kCorrupt, "{}: d2t: want row {} to name a token below {}, found an offset of {}",
                  tensors.where(), i, vocab, offset);
    ids.push_back(static_cast<int32_t>(i + offset));
  }
  return ids;
}

void read_vocabulary(Tensors& tensors, const Target& target, Head& head) {
  const int64_t rows = head.config.dims.vocab, vocab = head.reads.target_vocab, hidden = head.config.dims.hidden;
  const bool own = rows != vocab || tensors.has("lm_head.weight");
  const bool embeds = tensors.has("embed_tokens.weight");
  if ((!own || !embeds) && target.config.dims.hidden != hidden)
    throw Error(Code::kCorrupt,
                "{}: hidden_size: want the model's {}, as the head uses its embedding or lm_head, found {}", head.where,
                target.config.dims.hidden, hidden);
  const auto take = [&](bool is_own, WeightRole role, const char* name, int64_t of_rows) {
    if (!is_own) return head.weights.push_back(shared(target, role, tensors.where()));
    put(head, role, -1, tensors.take_floats(name, {of_rows, hidden}));
  };
  take(embeds, WeightRole::kEmbedding, "embed_tokens.weight", vocab);
  take(own, WeightRole::kUnembedding, "lm_head.weight", rows);
  if (rows != vocab || tensors.has("d2t")) head.reads.target_ids = read_target_ids(tensors, head);
  if (tensors.has("t2d")) tensors.take("t2d", {vocab});  // which tokens a draft may hold: of use in training
}

void read_taps(Tensors& tensors, const Target& target, Head& head) {
  using enum WeightRole;
  const backend::HeadConfig& reads = head.reads;
  const int64_t width = reads.taps * reads.target_hidden;
  if (!reads.fc) {  // it reads the model's last state, normed as the model norms it
    head.reads.tap_eps = target.config.rms_eps;
    HostWeight norm = weight_of(target, kFinalNorm);
    norm.role = kTapNorm;
    return head.weights.push_back(norm);
  }
  put(head, kTapFc, -1, tensors.take_floats("fc.weight", {head.config.dims.hidden, width}));
  if (reads.tap_norms == 1 && !head.fc_norm) put(head, kTapNorm, -1, tensors.take_floats("input_norm.weight", {width}));
  if (head.fc_norm) {
    std::vector<float> norms;
    for (int64_t i = 0; i < reads.taps; ++i) {
      const std::vector<float> own =
          backend::floats_of(tensors.take_floats(fmt::format("fc_norm.{}.weight", i), {reads.target_hidden}));
      norms.insert(norms.end(), own.begin(), own.end());
    }
    const auto bytes = std::as_bytes(std::span(norms));
    const std::vector<std::byte>& kept = head.made_up.emplace_back(bytes.begin(), bytes.end());
    put(head, kTapNorm, -1, {.dtype = DType::kF32, .shape = {width}, .bytes = kept});
  }
  if (head.mask_token) head.mask_hidden = backend::floats_of(tensors.row("mask_hidden", width));
}

void require_target(const Head& head, const ModelConfig& target) {
  const auto require = [&](const char* key, int64_t found, int64_t want) {
    if (found != want)
      throw Error(Code::kCorrupt, "{}: {}: want the model's {}, found {}", head.where, key, want, found);
  };
  const int64_t hidden = head.config.dims.hidden, read = head.reads.target_hidden;
  require("vocab_size", head.reads.target_vocab, target.dims.vocab);
  require(read == hidden ? "hidden_size" : "target_hidden_size", read, target.dims.hidden);
  if (!head.reads.fc) require("hidden_size", hidden, target.dims.hidden);
}

}  // namespace

std::vector<int> boundaries_of(const Head& head, int64_t layers, TapReading reading) {
  const auto last = static_cast<int>(layers);
  if (!head.reads.fc) return {last};
  // Three, as vLLM, SGLang and TensorRT-LLM take them where a head names none.
  std::vector<int> boundaries = {2, last / 2, last - 3};
  if (head.layer_ids) {
    const std::vector<int64_t>& ids = *head.layer_ids;
    const bool outputs = reading == TapReading::kAuto ? ids.back() != layers : reading == TapReading::kOutputs;
    boundaries.clear();
    for (const int64_t id : ids) boundaries.push_back(static_cast<int>(id + (outputs ? 1 : 0)));
  }
  const bool rising = std::ranges::adjacent_find(boundaries, std::greater_equal<>()) == boundaries.end();
  if (!rising || boundaries.front() < 0 || boundaries.back() > last)
    throw Error(Code::kCorrupt, "{}: want states of 0 to {}, the model's layers, rising; found {}", head.where, last,
                fmt::join(boundaries, ", "));
  return boundaries;
}

backend::HostWeight shared(const Target& target, WeightRole role, const std::string& where) {
  const HostWeight& weight = weight_of(target, role);
  if (!backend::is_float(weight.values.dtype))
    throw Error(Code::kUnsupported, "{}: the head has no {} of its own: want the model's in bf16, f16 or f32, found {}",
                where, name_of(role), name_of(weight.format));
  return {.role = role, .format = backend::format_of(weight.values.dtype), .values = weight.values, .scales = {}};
}

RawTensor filled(Head& head, int64_t count, float value) {
  const std::vector<Bf16> values(static_cast<size_t>(count), Bf16::from_float(value));
  const auto bytes = std::as_bytes(std::span(values));
  const std::vector<std::byte>& kept = head.made_up.emplace_back(bytes.begin(), bytes.end());
  return {.dtype = DType::kBf16, .shape = {count}, .bytes = kept};
}

void fill_up(Head& head) {
  using enum WeightRole;
  const backend::Dims& d = head.config.dims;
  for (int n = 0; n < d.layers; ++n) {
    const auto has = [&](WeightRole role) {
      return std::ranges::any_of(head.weights, [&](const HostWeight& w) { return w.role == role && w.layer == n; });
    };
    for (const auto& [role, count] : {std::pair{kQBias, d.q_width()},
                                      {kKBias, d.kv_width()},
                                      {kVBias, d.kv_width()},
                                      {kOBias, d.hidden},
                                      {kDownBias, d.hidden}})
      if (!has(role)) put(head, role, n, filled(head, count, 0));
    const RawTensor zeros = filled(head, d.inter, 0);
    if (!has(kGateUpBias)) put(head, kGateUpBias, n, zeros, &zeros);
    put(head, kSinks, n, filled(head, d.heads, -INFINITY));
  }
}

Head load(const std::filesystem::path& directory, const Target& target, TapReading reading) {
  Head head = read_head_config(directory, target.config.dims);
  require_target(head, target.config);
  head.boundaries = boundaries_of(head, target.config.dims.layers, reading);
  head.files.emplace(checkpoint::Checkpoint::open(directory));
  Tensors tensors(*head.files, directory.string());
  read_taps(tensors, target, head);
  for (int n = 0; n < head.config.dims.layers; ++n) read_layer(tensors, n, head);
  put(head, WeightRole::kFinalNorm, -1, tensors.take_floats("norm.weight", {head.config.dims.hidden}));
  read_vocabulary(tensors, target, head);
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
