#pragma once
// The table of all tensors of a gpt-oss checkpoint: nothing loads that is not in it, and all of it must be there.

#include "backend/weights.h"
#include "base/tensor.h"
#include "base/thread_pool.h"
#include "checkpoint/safetensors.h"
#include "model/config.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::model {

using backend::WeightRole;

// The shape of the values, in whatever format; backend/weights.h states each role's.
[[nodiscard]] Shape shape_of(WeightRole role, const backend::Dims& dims);

enum class Part : uint8_t { kValues, kScales };  // scales: of the MXFP4 pairs only
// Which of gate_up's rows a tensor holds: all, the even ones (gate) or the odd ones (up). GGUF has them apart.
enum class Half : uint8_t { kWhole, kEven, kOdd };

// Some rows of one stored tensor. Only OpenAI's fused qkv stores more rows than one role has; it appears three times.
struct ManifestItem {
  WeightRole role = WeightRole::kEmbedding;
  Part part = Part::kValues;
  Half half = Half::kWhole;
  int layer = -1;              // -1: of no layer
  std::string name;            // in the checkpoint
  DType dtype = DType::kBf16;  // in GGUF any that it has
  bool transposed = false;     // stored as [experts, in, out]
  Shape stored_shape{};        // of the tensor of that name
  int64_t first_row = 0;       // this role's part of the stored tensor's first dimension
  Shape shape;                 // of this role's part

  [[nodiscard]] int64_t bytes() const;
};

// How a file holds its experts. Safetensors: in pairs of MXFP4 blocks and scales, or in floats, as trainers save them.
// GGUF: gate and up apart (kMxfp4, whatever the type), or in one tensor as in safetensors.
enum class Experts : uint8_t { kMxfp4, kFloats, kWholeGateUp };

// embedding, final norm, unembedding, then layer by layer in the order of WeightRole, a pair's scales behind its
// values; in GGUF gate and its bias before up. REQUIRES: a valid config.
[[nodiscard]] std::vector<ManifestItem> manifest(const ModelConfig& config, Naming naming,
                                                 Experts experts = Experts::kMxfp4);

struct BindOptions {
  std::string where = "the checkpoint";  // the file or directory, for messages
  bool check_scales = true;              // read every scale and refuse NaN (255)
  ThreadPool* pool = nullptr;            // for reading the scales; null: the caller alone
  // What experts become that are not in MXFP4: kGgmlMxfp4, kGgmlQ8 or kBf16. None: MXFP4 of floats in safetensors, as
  // `nibble quantize` makes them; in GGUF kGgmlQ8.
  std::optional<backend::WeightFormat> experts{};
};

// GGUF's spelling or OpenAI's when the tensors use it, else Hugging Face's.
[[nodiscard]] Naming naming_of(std::span<const checkpoint::TensorEntry> tensors);

// Views of the tensors' bytes, without copies, in the manifest's order. Tensors in a format that no backend reads are
// bound as recoded (backend/weights.h): dense ones into the cheapest format that loses nothing, Q8_0, else into bf16;
// experts as `options` say. In GGUF gate and up become one weight (HostWeight::odd). Throws Error(kCorrupt) for tensors
// that are missing or unknown, for a wrong dtype or shape, and for a scale that is no finite number;
// Error(kInvalidRequest) for BindOptions::experts where all experts are MXFP4. Each message names the tensors, and what
// was expected and found.
[[nodiscard]] std::vector<backend::HostWeight> bind_weights(std::span<const checkpoint::TensorEntry> tensors,
                                                            const ModelConfig& config, const BindOptions& options = {});

// Calibrated scales of keys and values, by layer, from tensors "model.layers.N.self_attn.k_scale" and "v_scale", or
// "…attn.k_scale" or "…k_proj.k_scale" of it; empty where there are none. bind_weights() passes them over, and
// "q_scale", which has no use here. Throws Error(kCorrupt) where layers lack one, and for what is no positive number.
[[nodiscard]] std::vector<backend::KvScale> bind_kv_scales(std::span<const checkpoint::TensorEntry> tensors,
                                                           const ModelConfig& config, std::string_view where);

// The index of the first E8M0 byte that means NaN.
[[nodiscard]] std::optional<int64_t> find_nan_scale(std::span<const std::byte> scales);

}  // namespace nibble::model
