#pragma once
// An EAGLE-3 head as it is published (Li et al., 2503.01840, and its variants, P-EAGLE among them;
// docs/speculation.md): config.json and model.safetensors in a directory. A head is a small Llama that reads the
// target's residuals and drafts what comes next: a model that a backend runs like any other (backend.h, HeadConfig).
// What it lacks beside gpt-oss is made up, so that no backend asks: biases of 0, sinks of minus infinity.

#include "backend/backend.h"
#include "backend/weights.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/eagle3_config.h"
#include "model/config.h"
#include "model/gpt_oss.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble::model::eagle3 {

using checkpoint::TapReading;

struct Head {
  ModelConfig config;  // dims.vocab: rows of its lm_head; its embedding has the target's
  backend::HeadConfig reads;
  RopeTable rope;
  std::vector<int> boundaries;  // of the target's residuals that it reads (model/gpt_oss.h: Taps)
  std::vector<backend::HostWeight> weights;
  // P-EAGLE: guesses behind the first are made at once, of rows of this token and of mask_hidden in place of residuals.
  // None: it drafts one token after another, each from what it made of the one before.
  std::optional<int32_t> mask_token;
  std::vector<float> mask_hidden;  // [taps * target_hidden], with mask_token

  std::optional<checkpoint::Checkpoint> files;  // what weights point into, beside
  std::vector<std::vector<std::byte>> made_up;  // these
};

// The boundaries that `config` means of a target with so many layers. Throws Error(kCorrupt) where there is none such.
[[nodiscard]] std::vector<int> boundaries_of(const checkpoint::Eagle3Config& config, int64_t layers,
                                             TapReading reading);

// A head's shape alone, as `config` says: without weights, boundaries and what tensors tell. `target`: the model's.
[[nodiscard]] Head described(const checkpoint::Eagle3Config& config, const backend::Dims& target);

// What the head is for. A head without embedding or lm_head uses the target's; the bytes live as long as the head.
struct Target {
  const ModelConfig& config;
  std::span<const backend::HostWeight> weights;
};

// The head's weight of the role, one of the target's that it has none of itself. Throws Error(kUnsupported) where that
// is quantised, naming who wants it.
[[nodiscard]] backend::HostWeight shared(const Target& target, backend::WeightRole role, const std::string& where);

// Adds what the head's layers lack: biases and sinks. REQUIRES its config and all other weights.
void fill_up(Head& head);

// Throws what read_eagle3_config() and Checkpoint::open() throw, Error(kCorrupt) for a tensor that is missing, of the
// wrong shape or type or not of such a head, naming it, and for a head of another target; Error(kUnsupported) for a
// target whose shared tensors are quantised.
[[nodiscard]] Head load(const std::filesystem::path& directory, const Target& target, TapReading reading);

// What a backend must know about a head.
[[nodiscard]] backend::BackendConfig backend_config(const Head& head, const StepLimits& limits);

}  // namespace nibble::model::eagle3
