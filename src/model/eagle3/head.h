#pragma once
// An EAGLE-3 head as it is published (Li et al., 2503.01840, and its variants, P-EAGLE among them;
// docs/speculation.md): config.json and model.safetensors in a directory. A head is a small Llama that reads the
// target's residuals and drafts what comes next: a model that a backend runs like any other (backend.h, HeadConfig).
// What it lacks beside gpt-oss is made up, so that no backend asks: biases of 0, sinks of minus infinity.

#include "backend/backend.h"
#include "backend/weights.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/gpt_oss.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::model::eagle3 {

// What the ids of layers of a head mean: the output of layer i, or the boundary before layer i. Heads do not say; auto:
// a list that ends with the number of layers names boundaries, any other outputs.
enum class TapReading : uint8_t { kAuto, kOutputs, kBoundaries };

struct Head {
  std::string where;   // its config.json
  ModelConfig config;  // dims.vocab: rows of its lm_head; its embedding has the target's
  backend::HeadConfig reads;
  RopeTable rope;
  std::optional<std::vector<int64_t>> layer_ids;  // that it reads; none: the default, which depends on the target
  bool fc_norm = false;                           // each tap has a norm of its own
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  double logit_scale = 1;       // changes no draft
  std::vector<int> boundaries;  // of the target's residuals that it reads (model/gpt_oss.h: Taps)
  std::vector<backend::HostWeight> weights;
  // P-EAGLE: guesses behind the first are made at once, of rows of this token and of mask_hidden in place of residuals.
  // None: it drafts one token after another, each from what it made of the one before.
  std::optional<int32_t> mask_token;
  std::vector<float> mask_hidden;  // [taps * target_hidden], with mask_token

  std::optional<checkpoint::Checkpoint> files;  // what weights point into, beside
  std::vector<std::vector<std::byte>> made_up;  // these
};

// A head as config.json says, without what tensors tell: weights, boundaries, target_ids. Two spellings exist: a Llama
// configuration with an eagle_config (SafeAILab/EAGLE, SpecForge, NVIDIA), and the speculators format, which keeps the
// layer's keys in transformer_layer_config. A P-EAGLE head is one that has a mask token. `target`: the model's, whose
// context is the head's. Throws Error(kUnsupported) for another kind of model, a key that is not known here or a value
// that nothing here computes, and Error(kCorrupt) for a missing key, a wrong type or a value out of range; each names
// `where`, the key, and what was wanted and found.
[[nodiscard]] Head parse_head_config(std::string_view text, std::string_view where, const backend::Dims& target);
// Reads config.json of the directory; also Error(kIo).
[[nodiscard]] Head read_head_config(const std::filesystem::path& directory, const backend::Dims& target);

// The boundaries that the head means of a target with so many layers. Throws Error(kCorrupt) where there is none such.
[[nodiscard]] std::vector<int> boundaries_of(const Head& head, int64_t layers, TapReading reading);

// What the head is for. A head without embedding or lm_head uses the target's; the bytes live as long as the head.
struct Target {
  const ModelConfig& config;
  std::span<const backend::HostWeight> weights;
};

// The head's weight of the role, one of the target's that it has none of itself. Throws Error(kUnsupported) where that
// is quantised, naming who wants it.
[[nodiscard]] backend::HostWeight shared(const Target& target, backend::WeightRole role, const std::string& where);

// A vector of equal values, which the head keeps.
[[nodiscard]] RawTensor filled(Head& head, int64_t count, float value);
// Adds what the head's layers lack: biases and sinks. REQUIRES its config and all other weights.
void fill_up(Head& head);

// Throws what read_head_config() and Checkpoint::open() throw, Error(kCorrupt) for a tensor that is missing, of the
// wrong shape or type or not of such a head, naming it, and for a head of another target; Error(kUnsupported) for a
// target whose shared tensors are quantised.
[[nodiscard]] Head load(const std::filesystem::path& directory, const Target& target, TapReading reading);

// What a backend must know about a head.
[[nodiscard]] backend::BackendConfig backend_config(const Head& head, const StepLimits& limits);

}  // namespace nibble::model::eagle3
